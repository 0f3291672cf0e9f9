// Package topk counts who occurs most often in a stream that has more members than
// there is memory for.
//
// A Sketch is the algorithm Space-Saving (Metwally, Agrawal, El Abbadi: Efficient
// Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005). It has m
// counters. Who has one is counted exactly from then on; who has none takes over the
// smallest counter, and inherits its number as the most that may have been counted
// before. So of n occurrences,
//
//   - the true number of a member lies between AtLeast and AtMost of its Entry,
//   - the two are no further apart than n/m,
//   - whoever occurred more than n/m times has an entry.
//
// While there are no more members than counters, everything is exact.
//
// Sketches of parts of a stream can be put together with the bounds above, n being
// the whole (Agarwal, Cormode, Huang, Phillips, Wei, Yi: Mergeable Summaries, PODS
// 2012). Recent uses that to answer for the last minute and the last hour in bounded
// memory: it keeps a sketch for the present and merges it into slots of each window.
package topk
