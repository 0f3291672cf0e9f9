// Package archtest holds the test that says which of the project's packages
// may import which. It has no code of its own.
//
// The vocabulary (policy) stands at the bottom, and the root package at the
// top. Between them stand siblings that never see each other: backends, the
// stores of tiers and policies, the admin API. What one of them needs of
// another it declares as an interface, and the root package joins the two. So
// each can be read, tested and replaced alone.
package archtest
