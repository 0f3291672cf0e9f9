package jwtauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

const (
	// refreshEvery is how often a set is read that works, and retryFirst and
	// retryMost how soon again one that does not.
	refreshEvery          = 5 * time.Minute
	retryFirst, retryMost = time.Second, time.Minute

	// A token with an unknown key has the set read at most so often: three times in
	// a row, so that a rotation that follows another is seen at once.
	askedEvery, askedBurst = 5 * time.Second, 3

	// missingFor is how long a key that a read did not bring causes no other read,
	// and maxMissing of how many keys that is known.
	missingFor, maxMissing = 10 * time.Second, 256

	// readTimeout bounds a read, requestWait how long a request waits for one, and
	// maxWaiting how many requests do.
	readTimeout = 3 * time.Second
	requestWait = 200 * time.Millisecond
	maxWaiting  = 100

	// startWait is how long a configuration waits for the first read of its set.
	startWait = time.Second

	maxSetBytes = 1 << 20
)

// setAlgorithms are those that a key set can have keys of: secrets are not
// published.
var setAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// keySets holds the sets in use, by URL.
var keySets = caddy.NewUsagePool()

// keySet is the key set behind a URL. It is read again and again, in the
// background, and whole sets are swapped.
type keySet struct {
	url     string
	client  *http.Client
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	first   *reading
	logger  atomic.Pointer[zap.Logger]

	current atomic.Pointer[[]*key] // nil until a read succeeds
	skipped string                 // of the last warning; only reads touch it, one at a time
	asked   *rate.Limiter
	waiting atomic.Int32

	mu      sync.Mutex
	reading *reading // nil while no read runs
	missing map[string]time.Time
}

// reading is one read that runs.
type reading struct {
	began time.Time
	done  chan struct{}
	err   error // set before done is closed
}

// joinKeySet returns the set of a URL until ctx ends. It waits a moment for a set
// that was never read; one that cannot be read is logged.
func joinKeySet(ctx caddy.Context, url string) (keySource, error) {
	shared, loaded, err := keySets.LoadOrNew(url, func() (caddy.Destructor, error) { return newKeySet(url, ctx.Logger()), nil })
	if err != nil {
		return nil, err
	}
	s := shared.(*keySet)
	s.logger.Store(ctx.Logger())
	context.AfterFunc(ctx, func() { _, _ = keySets.Delete(url) })
	if !loaded {
		wait, cancel := context.WithTimeout(ctx, startWait)
		defer cancel()
		s.await(wait, s.first)
	}
	return s, nil
}

func newKeySet(url string, logger *zap.Logger) *keySet {
	ctx, stop := context.WithCancel(context.Background())
	s := &keySet{
		url: url, client: newClient(), ctx: ctx, stop: stop,
		asked:   rate.NewLimiter(rate.Every(askedEvery), askedBurst),
		missing: make(map[string]time.Time),
	}
	s.logger.Store(logger)
	s.first = s.begin()
	s.running.Go(s.keepFresh)
	return s
}

// newClient makes a client that keeps nothing open between reads, and that no
// redirect leads from TLS to plain text.
func newClient() *http.Client {
	return &http.Client{
		Timeout:   readTimeout,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: readTimeout},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 3 {
				return errors.New("redirected too often")
			}
			if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
				return errors.New("redirected from https to " + r.URL.Scheme)
			}
			return nil
		},
	}
}

// Destruct ends the set once no configuration uses it.
func (s *keySet) Destruct() error {
	s.mu.Lock() // no read begins any more once this is released
	s.stop()
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// keepFresh reads the set until its end.
func (s *keySet) keepFresh() {
	retry := retryFirst
	for r := s.first; ; r = s.begin() {
		<-r.done
		pause := refreshEvery
		if r.err != nil {
			pause, retry = retry, min(2*retry, retryMost)
		} else {
			retry = retryFirst
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// find returns the key that a token names, or for a token that names none the only
// one that could be meant.
func (s *keySet) find(ctx context.Context, id, algorithm string) (*key, error) {
	if !slices.Contains(setAlgorithms, algorithm) {
		return nil, errAlgorithm
	}
	k, err := s.look(id, algorithm)
	if err == nil || errors.Is(err, errAlgorithm) {
		return k, err
	}
	r := s.ask(id)
	if r == nil {
		return nil, err
	}
	if s.waiting.Add(1) <= maxWaiting {
		wait, cancel := context.WithDeadline(ctx, r.began.Add(requestWait))
		s.await(wait, r)
		cancel()
	}
	s.waiting.Add(-1)
	return s.look(id, algorithm)
}

// look finds a key in the set as it is.
func (s *keySet) look(id, algorithm string) (*key, error) {
	set := s.current.Load()
	if set == nil {
		return nil, ErrUnavailable
	}
	var found *key
	err := errKey
	for _, k := range *set {
		switch {
		case id != "" && k.id != id:
		case !k.accepts(algorithm):
			if id != "" {
				err = errAlgorithm
			}
		case id != "":
			return k, nil
		case found != nil:
			return nil, errKey // either could be meant
		default:
			found = k
		}
	}
	if found != nil {
		return found, nil
	}
	return nil, err
}

// ask returns a read that may bring a key: the one that runs, or a new one if that
// is due; else nil.
func (s *keySet) ask(id string) *reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading != nil {
		return s.reading
	}
	now := time.Now()
	if now.Before(s.missing[id]) || !s.asked.AllowN(now, 1) {
		return nil
	}
	if len(s.missing) >= maxMissing {
		clear(s.missing)
	}
	s.missing[id] = now.Add(missingFor)
	return s.beginLocked()
}

// begin returns the read that runs, which it starts if there is none.
func (s *keySet) begin() *reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beginLocked()
}

func (s *keySet) beginLocked() *reading {
	if s.reading != nil {
		return s.reading
	}
	r := &reading{began: time.Now(), done: make(chan struct{})}
	if s.ctx.Err() != nil { // ended: nothing is read any more
		r.err = s.ctx.Err()
		close(r.done)
		return r
	}
	s.reading = r
	s.running.Go(func() { s.read(r) })
	return r
}

// await waits until a read is done or ctx ends.
func (s *keySet) await(ctx context.Context, r *reading) {
	select {
	case <-r.done:
	case <-ctx.Done():
	}
}

func (s *keySet) read(r *reading) {
	set, skipped, err := s.fetch()
	switch {
	case err == nil:
		s.current.Store(&set)
		if skipped != nil && skipped.Error() != s.skipped {
			s.skipped = skipped.Error()
			s.logger.Load().Warn("the key set has keys that cannot be used", zap.String("jwks", s.redacted()), zap.Error(skipped))
		}
	case s.ctx.Err() == nil:
		s.logger.Load().Error("the key set cannot be read; until it can, the last one is used, if there is one",
			zap.String("jwks", s.redacted()), zap.Bool("has_keys", s.current.Load() != nil), zap.Error(err))
	}
	s.mu.Lock()
	s.reading = nil
	s.mu.Unlock()
	r.err = err
	close(r.done)
}

// redacted is the URL without the password that may be in it.
func (s *keySet) redacted() string {
	u, err := url.Parse(s.url)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

// fetch reads the set once. skipped says which of its keys cannot be used.
func (s *keySet) fetch() (set []*key, skipped, err error) {
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("the server answered %s", response.Status)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxSetBytes+1))
	if err != nil {
		return nil, nil, err
	}
	if len(text) > maxSetBytes {
		return nil, nil, fmt.Errorf("it has more than %d bytes", maxSetBytes)
	}
	return parseKeySet(text)
}

// Interface guards
var (
	_ keySource        = (*keySet)(nil)
	_ keySource        = oneKey{}
	_ caddy.Destructor = (*keySet)(nil)
)
