package conformance

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-tollgate/ratelimit/policy"
)

// Rounds of linearizable, and what each of them sends.
const (
	rounds          = 30
	clients         = 6
	requestsInRound = 6
)

// linearizable sends requests for a few buckets at once and looks for an order, with
// each request between its call and its return, in which the model answers every one
// of them the same, to the last number. The clock stands in a round, and goes on
// between them.
func linearizable(s *session) {
	var scopes []policy.Bucket
	for i, limit := range []string{"9/1h", "8/1h max_delay 9m leaky_bucket", "7/1h fixed_window", "9/1h sliding_window", "8/1h sliding_log"} {
		scopes = append(scopes, of(string(rune('a'+i)), bucket(limit, 1)))
	}
	s.start = midnight
	var history []porcupine.Operation
	for round := range rounds {
		s.at(time.Duration(round) * 7 * minute)
		history = append(history, s.round(scopes, uint64(round))...)
	}
	if result := porcupine.CheckOperationsTimeout(sequential, history, minute); result != porcupine.Ok {
		s.Errorf("no order of the requests explains their answers: %s", result)
	}
}

// round sends the requests of all clients at once and returns their history.
func (s *session) round(scopes []policy.Bucket, seed uint64) []porcupine.Operation {
	var mu sync.Mutex
	var history []porcupine.Operation
	var group sync.WaitGroup
	start := make(chan struct{})
	for client := range clients {
		random := rand.New(rand.NewPCG(seed, uint64(client)))
		group.Go(func() {
			<-start
			for range requestsInRound {
				op := s.operation(client, pick(random, scopes))
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	close(start)
	group.Wait()
	return history
}

// since is what a history's times count from.
var since = time.Now()

func (s *session) operation(client int, buckets []policy.Bucket) porcupine.Operation {
	decisions := make([]policy.Decision, len(buckets))
	op := porcupine.Operation{ClientId: client, Input: timedRequest{s.clock.Now(), buckets}, Call: int64(time.Since(since))}
	if err := s.backend.Take(s.Context(), buckets, decisions); err != nil {
		s.Errorf("Take: %v", err)
	}
	op.Return, op.Output = int64(time.Since(since)), decisions
	return op
}

// pick draws one to three of the buckets, of one identity so that they are in one
// slot: over several, a cluster promises that nothing is admitted too much, and not
// that nobody sees what is given back.
func pick(random *rand.Rand, scopes []policy.Bucket) []policy.Bucket {
	request := slices.Clone(scopes)
	random.Shuffle(len(request), func(i, j int) { request[i], request[j] = request[j], request[i] })
	request = request[:1+random.IntN(3)]
	for i := range request {
		request[i].Cost = random.Int64N(3)
		request[i].Shadow = random.IntN(4) == 0
	}
	return request
}

// timedRequest is the input of an operation.
type timedRequest struct {
	now     int64
	buckets []policy.Bucket
}

// sequential is the model for porcupine.
var sequential = porcupine.Model{
	Init: func() any { return make(model) },
	Step: func(state, input, output any) (bool, any) {
		request, next := input.(timedRequest), state.(model).clone()
		want, _ := next.take(request.now, request.buckets)
		return slices.Equal(want, output.([]policy.Decision)), next
	},
	Equal: func(a, b any) bool { return a.(model).fingerprint() == b.(model).fingerprint() },
}
