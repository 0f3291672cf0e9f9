package integration_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-tollgate/ratelimit/internal/testserver"
)

// calmWindow is a window of hours that is aligned to the epoch and neither began
// within the last minute nor ends within the next ten: nothing comes back while a
// test runs.
func calmWindow(t *testing.T) string {
	t.Helper()
	for _, hours := range []int64{23, 25, 29, 31, 37} {
		length := hours * 3600
		if into := time.Now().Unix() % length; into > 60 && into < length-600 {
			return fmt.Sprintf("%dh", hours)
		}
	}
	t.Fatal("no window is calm")
	return ""
}

// counting are the algorithms that give their whole limit at once.
var counting = []string{"token_bucket", "fixed_window", "sliding_window", "sliding_log"}

// algorithmSite has one path and one zone for each of them, of the same limit.
func algorithmSite(t *testing.T, limit string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range counting {
		fmt.Fprintf(&text, "rate_limit /%[1]s {\n zone %[1]s {\n limit %[2]s\n algorithm %[1]s\n }\n }\n", name, limit+"/"+calmWindow(t))
	}
	return trusting + ":{$PORT} {\n" + text.String() + "respond welcome\n}\n"
}

// processesOf starts one process for buckets in memory, and two for a Redis.
func processesOf(t *testing.T, site, backend string) []*caddy {
	t.Helper()
	processes := []*caddy{startCaddy(t, site, backend)}
	if backend != "BACKEND=memory" {
		processes = append(processes, startCaddy(t, site, backend))
	}
	return processes
}

func TestEachAlgorithmAdmitsExactlyItsLimitOfConcurrentRequests(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		processes := processesOf(t, algorithmSite(t, "10"), backend)
		for _, name := range counting {
			t.Run(name, func(t *testing.T) {
				burst(t, 50, "/"+name, nil, processes...).want(t, tally{200: 10, 429: 40})
				burst(t, 50, "/"+name, []option{from("203.0.113.7")}, processes...).want(t, tally{200: 10, 429: 40})
				for _, c := range processes {
					a := c.get("/" + name)
					a.wantProblem(t, 429, "rate_limited", name)
					a.wantNumber(t, "X-RateLimit-Limit", 10)
					a.wantNumber(t, "X-RateLimit-Remaining", 0)
				}
			})
		}
	})
}

// outcomes are what becomes of requests that were sent at once: answers in the
// order in which they came, and when.
type outcomes struct {
	mu       sync.Mutex
	statuses []int
	after    []time.Duration
}

// sendAtOnce sends n requests, and gives up on those that have no answer when the
// context ends.
func sendAtOnce(ctx context.Context, n int, path string, processes ...*caddy) (o *outcomes, done *sync.WaitGroup) {
	o, done = new(outcomes), new(sync.WaitGroup)
	start := time.Now()
	for i := range n {
		done.Go(func() {
			a, err := processes[i%len(processes)].try(path, func(r *http.Request) { *r = *r.WithContext(ctx) })
			if err != nil {
				return
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.statuses = append(o.statuses, a.status)
			o.after = append(o.after, time.Since(start))
		})
	}
	return o, done
}

func (o *outcomes) count() tally {
	o.mu.Lock()
	defer o.mu.Unlock()
	count := make(tally)
	for _, status := range o.statuses {
		count[status]++
	}
	return count
}

// The queue of a leaky bucket has one place at its head and eleven behind it: every
// 54 seconds a request leaves, and none waits for more than ten minutes.
func TestALeakyBucketAdmitsExactlyAsManyConcurrentRequestsAsItsQueueHolds(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		processes := processesOf(t, trusting+`
:{$PORT} {
	rate_limit {
		zone queue {
			limit 10/9m
			algorithm leaky_bucket
			max_delay 10m
		}
	}
	respond "welcome"
}`, backend)
		ctx, giveUp := context.WithCancel(t.Context())
		o, done := sendAtOnce(ctx, 50, "/", processes...)
		eventually(t, "all but those who wait are answered", func() bool { return o.count()[429]+o.count()[200] >= 39 })
		processes[0].get("/").wantProblem(t, 429, "rate_limited", "queue")
		giveUp()
		done.Wait()
		o.count().want(t, tally{200: 1, 429: 38})
		// who has gone has used its place all the same
		processes[0].get("/").wantProblem(t, 429, "rate_limited", "queue")
	})
}

// A queue of 4/1s: one passes at once, the others 250 ms apart, and who would wait
// for longer than 600 ms is refused.
func TestALeakyBucketDelaysAndThenRefuses(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		const apart = 250 * time.Millisecond
		processes := processesOf(t, trusting+`
:{$PORT} {
	rate_limit {
		zone queue {
			limit 4/1s
			algorithm leaky_bucket
			max_delay 600ms
		}
	}
	respond "welcome"
}`, backend)
		o, done := sendAtOnce(t.Context(), 40, "/", processes...)
		done.Wait()
		passed := 0
		for i, status := range o.statuses {
			if status != 200 {
				continue
			}
			if earliest := time.Duration(passed) * apart; o.after[i] < earliest {
				t.Errorf("request %d passed after %s, want %s at the earliest", passed+1, o.after[i], earliest)
			}
			passed++
		}
		last := slices.Max(o.after)
		if most := 3 + int(last/apart); passed < 3 || passed > most || passed+o.count()[429] != 40 {
			t.Errorf("%v within %s; want 3 to %d to pass and the others to be refused", o.count(), last, most)
		}
	})
}

// In the words of mholt/caddy-ratelimit a zone is an exact log: no two seconds,
// wherever they begin, see a fourth request pass.
func TestAZoneOfWindowAndEventsIsASlidingLog(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		const window = 2 * time.Second
		processes := processesOf(t, trusting+`
:{$PORT} {
	rate_limit {
		zone dynamic_example {
			window 2s
			events 3
		}
	}
	respond "welcome"
}`, backend)
		var sent, answered []time.Time
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; len(sent) < 8; i++ {
			start := time.Now()
			// without a key, one log for all
			a := processes[i%len(processes)].get("/", from(fmt.Sprintf("203.0.113.%d", i%200)))
			if a.status == 200 {
				sent, answered = append(sent, start), append(answered, time.Now())
			} else {
				a.wantProblem(t, 429, "rate_limited", "dynamic_example")
			}
			if i < 3 && len(sent) != i+1 {
				t.Fatalf("request %d of the first three was refused", i+1)
			}
			if i > 5000 {
				t.Fatalf("%d of 5000 requests passed, want 8", len(sent))
			}
			<-tick.C
		}
		for i := range len(sent) - 3 {
			if apart := answered[i+3].Sub(sent[i]); apart < window {
				t.Errorf("requests %d to %d passed within %s", i+1, i+4, apart)
			}
		}
	})
}

// A request that one algorithm refuses takes from none of the others.
func TestSeveralAlgorithmsInOneHandlerAreChargedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		var text strings.Builder
		for _, name := range counting {
			limit, match := 20, ""
			if name == "sliding_log" {
				limit, match = 5, "match path /all"
			}
			fmt.Fprintf(&text, "zone %[1]s {\n %[2]s\n limit %[3]d/%[4]s\n algorithm %[1]s\n }\n", name, match, limit, calmWindow(t))
		}
		text.WriteString("zone queue {\n match path /none\n limit 1/1h\n algorithm leaky_bucket\n }\n")
		processes := processesOf(t, trusting+":{$PORT} {\n rate_limit {\n"+text.String()+"}\n respond welcome\n}\n", backend)
		burst(t, 50, "/all", nil, processes...).want(t, tally{200: 5, 429: 45})
		a := processes[0].get("/").wantStatus(t, 200)
		for _, name := range counting[:3] {
			if left := a.remaining(t, name); left != 14 {
				t.Errorf("%s: %d left after 5 of 50 and one more, want 14", name, left)
			}
		}
		burst(t, 20, "/none", nil, processes...).want(t, tally{200: 1, 429: 19})
		a = processes[0].get("/").wantStatus(t, 200)
		for _, name := range counting[:3] {
			if left := a.remaining(t, name); left != 12 {
				t.Errorf("%s: %d left after a queue refused 19, want 12", name, left)
			}
		}
	})
}

// What Redis refused is refused here until it may have changed: a flood of a
// client that is over its limit costs Redis about a call per second.
func TestAThousandRefusedRequestsCostRedisNextToNothing(t *testing.T) {
	t.Parallel()
	server := testserver.NewRedis(t)
	looker := inspect(t, server)
	c := startCaddy(t, algorithmSite(t, "10"), redisBackend(server))
	for _, name := range counting {
		c.sequence(11, "/"+name).want(t, tally{200: 10, 429: 1})
		before, start := commandCalls(t, looker), time.Now()
		c.sequence(1000, "/"+name).want(t, tally{429: 1000})
		calls := commandCalls(t, looker)["evalsha"] - before["evalsha"]
		if most := 2 + int(time.Since(start).Seconds()); calls > most {
			t.Errorf("%s: 1000 refused requests were %d calls, want at most %d", name, calls, most)
		}
	}
}

// A refusal that is known is forgotten with the limit that it was about.
func TestALimitThatIsRaisedByAReloadTakesEffectAtOnceWhereRefusalsAreKnown(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		processes := processesOf(t, algorithmSite(t, "10"), backend)
		raised := algorithmSite(t, "12")
		for _, name := range counting {
			burst(t, 40, "/"+name, nil, processes...).want(t, tally{200: 10, 429: 30})
		}
		for _, c := range processes {
			c.reload(raised)
			for _, name := range counting {
				c.get("/"+name).wantStatus(t, 200)
			}
		}
		for _, name := range counting {
			burst(t, 10, "/"+name, nil, processes...).want(t, tally{200: 2 - len(processes), 429: 8 + len(processes)}.nonzero())
		}
	})
}

// nonzero is the tally as counting makes it.
func (count tally) nonzero() tally {
	for status, n := range count {
		if n == 0 {
			delete(count, status)
		}
	}
	return count
}
