// Package testserver starts the servers that tests and benchmarks need: real
// ones, on free ports, in temporary folders, stopped at the end. It never
// touches a server that it did not start.
//
// A server is ready when it answers, not when some time has passed; waiting is
// bounded, and a server that does not come up is an error that carries its log.
// Faults are real, too: Pause stops the process with SIGSTOP, Kill ends it
// without a goodbye, Proxy drops and delays bytes between the two sides. Faults lists
// all that a Redis and its network are known to do.
package testserver
