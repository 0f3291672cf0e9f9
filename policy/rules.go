package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The rules that every store holds its records to. What a rule refuses, it
// refuses with a *FieldError, or with one of the errors of a store.

// Kinds of records, as AuditRecord.Kind names them.
const (
	KindTier   = "tier"
	KindPolicy = "policy"
	KindKey    = "api_key"
)

// Bounds of what a record may hold, in bytes, and of a page.
const (
	maxRouteLength  = 1024
	maxMethods      = 32
	maxClientLength = 256
	maxPrefixLength = 16
	maxIDLength     = 64

	DefaultPage = 100  // records of a page whose limit is 0
	MaxPage     = 1000 // the most of a page
)

// How long a store keeps what it does not need for ever.
const (
	IdempotencyRetention  = 24 * time.Hour
	DefaultAuditRetention = 400 * 24 * time.Hour
)

// SeedTiers is what a new store starts with: every tier with its ceiling. The
// records have no times yet.
func SeedTiers() []PolicyRecord {
	seed := func(tier string, count int64) PolicyRecord {
		return PolicyRecord{Version: 1, Policy: Policy{
			ID: "default-" + strings.ToLower(tier), Tier: tier, Route: "*",
			Limit: Limit{Count: count, Window: time.Minute}, Algorithm: TokenBucket, Cost: 1, Mode: Enforce,
		}}
	}
	return []PolicyRecord{seed(Anonymous, strictest.Limit.Count), seed("FREE", 60), seed("PRO", 600), seed("ENTERPRISE", 6000)}
}

// CheckTier reports a tier that cannot be stored.
func CheckTier(t TierRecord) error {
	if err := CheckTierName(t.Name); err != nil {
		return &FieldError{Field: "name", Detail: err.Error()}
	}
	return nil
}

// CheckTierChange reports a change that a tier cannot have: the tier anonymous
// keeps its name.
func CheckTierChange(before, after TierRecord) error {
	if before.Name == Anonymous && after.Name != Anonymous {
		return &FieldError{Field: "name", Detail: "the tier anonymous is that of all clients without a key, so it keeps its name; make another tier instead"}
	}
	return CheckTier(after)
}

// CheckPolicy reports what is wrong with a policy by itself, and returns it with
// its defaults filled in and its route in the form that is compared.
func CheckPolicy(p Policy) (Policy, error) {
	if (p.Tier == "") == (p.APIKeyID == "") {
		return p, &FieldError{Field: "tier", Detail: "a policy belongs to a tier or to an API key; write either tier or api_key_id"}
	}
	if err := checkID(p.ID); err != nil {
		return p, err
	}
	if err := p.normalizeRoute(); err != nil {
		return p, err
	}
	if err := p.normalizeWords(); err != nil {
		return p, err
	}
	return p, p.checkNumbers()
}

func (p *Policy) normalizeRoute() error {
	switch {
	case len(p.Route) > maxRouteLength:
		return &FieldError{Field: "route", Detail: fmt.Sprintf("a route has at most %d bytes; write a pattern like /orders/*", maxRouteLength)}
	case !plainText(p.Route):
		return &FieldError{Field: "route", Detail: "a route is text without control characters; write a path like /orders/*"}
	case len(p.Methods) > maxMethods:
		return &FieldError{Field: "methods", Detail: fmt.Sprintf("a route takes at most %d methods; leave them out for all", maxMethods)}
	}
	if _, err := NewRoute(p.Route); err != nil {
		return &FieldError{Field: "route", Detail: err.Error()}
	}
	route, err := NewRoute(p.Route, p.Methods...)
	if err != nil {
		return &FieldError{Field: "methods", Detail: err.Error()}
	}
	p.Route, p.Methods = route.Path, route.Methods
	return nil
}

func (p *Policy) normalizeWords() (err error) {
	if p.Algorithm, err = ParseAlgorithm(string(p.Algorithm)); err != nil {
		return &FieldError{Field: "algorithm", Detail: err.Error()}
	}
	if p.Mode, err = ParseMode(string(p.Mode)); err != nil {
		return &FieldError{Field: "mode", Detail: err.Error()}
	}
	if p.OnError != "" {
		if _, err = ParseOnError(string(p.OnError)); err != nil {
			return &FieldError{Field: "on_error", Detail: err.Error()}
		}
	}
	return nil
}

func (p *Policy) checkNumbers() error {
	if err := p.Limit.Validate(); err != nil {
		return &FieldError{Field: p.Limit.wrongField(), Detail: strings.TrimPrefix(err.Error(), "limit: ")}
	}
	rule, err := NewRule(p.Limit, p.Algorithm)
	if err != nil {
		field := "limit"
		_, withoutDelay := NewRule(Limit{Count: p.Limit.Count, Window: p.Limit.Window, Burst: p.Limit.Burst}, p.Algorithm)
		if p.Limit.MaxDelay > 0 && withoutDelay == nil {
			field = "max_delay"
		} else if _, asDefault := NewRule(p.Limit, TokenBucket); asDefault == nil {
			field = "algorithm"
		}
		return &FieldError{Field: field, Detail: err.Error()}
	}
	if err := rule.CheckCost(p.Cost); err != nil {
		return &FieldError{Field: "cost", Detail: err.Error()}
	}
	if p.Cost > MaxCount {
		return &FieldError{Field: "cost", Detail: fmt.Sprintf("cost %d is too large; the most is %d", p.Cost, MaxCount)}
	}
	return nil
}

// wrongField names the first field that Validate refuses.
func (l Limit) wrongField() string {
	count := Limit{Count: max(l.Count, 0), Window: time.Second}
	switch {
	case l.Count < 0 || count.Validate() != nil:
		return "limit"
	case (Limit{Count: l.Count, Window: l.Window}).Validate() != nil:
		return "window"
	case (Limit{Count: l.Count, Window: l.Window, Burst: l.Burst}).Validate() != nil:
		return "burst"
	}
	return "max_delay"
}

// Scope is the scope of the policy's route: one owner has one policy per scope.
// It is empty for a route that CheckPolicy refuses.
func (p Policy) Scope() string {
	route, err := NewRoute(p.Route, p.Methods...)
	if err != nil {
		return ""
	}
	return route.Scope()
}

// Protected reports whether the policy is the ceiling of anonymous clients,
// which a store always has: they are never unlimited.
func (p Policy) Protected() bool { return p.Tier == Anonymous && p.Scope() == globalScope }

// ErrProtected is what deleting the ceiling of anonymous clients is refused
// with.
var ErrProtected = fmt.Errorf("the last policy of the tier anonymous %w: without it, clients without a key would have no limit; change its limit instead", ErrInUse)

// CheckPolicyChange reports a change that would take the ceiling of anonymous
// clients away. Both policies are ones that CheckPolicy returned.
func CheckPolicyChange(before, after Policy) error {
	if !before.Protected() || after.Protected() {
		return nil
	}
	field := "route"
	if after.Tier != Anonymous {
		field = "tier"
	}
	return &FieldError{Field: field, Detail: "this is the last policy of the tier anonymous for every route, and clients without a key are never unlimited; keep its tier and route, and make another policy"}
}

// RouteTaken is the error for a second policy of one owner for one route.
func RouteTaken(p Policy, other string) error {
	owner := "tier " + p.Tier
	if p.APIKeyID != "" {
		owner = "API key " + p.APIKeyID
	}
	return fmt.Errorf("a policy of %s for %s %w, %s; change that one, or write a more specific route", owner, p.place(), ErrExists, other)
}

// UnknownTier is the error for a record that names a tier that is not stored.
func UnknownTier(name string, known []string) error {
	return &FieldError{Field: "tier", Detail: fmt.Sprintf("there is no tier %q; create it, or write one of: %s", name, strings.Join(known, ", "))}
}

// UnknownKey is the error for a policy of an API key that is not stored.
func UnknownKey(id string) error {
	return &FieldError{Field: "api_key_id", Detail: fmt.Sprintf("there is no API key %q; write the id of one, like k8Fq2...", id)}
}

// CheckKeyRecord reports what is wrong with an API key's record by itself.
func CheckKeyRecord(k KeyRecord) error {
	if err := checkID(k.ID); err != nil {
		return err
	}
	switch {
	case len(k.Client) > maxClientLength || !plainText(k.Client):
		return &FieldError{Field: "client", Detail: fmt.Sprintf("client is at most %d bytes of text without control characters, like a name or an address", maxClientLength)}
	case len(k.Prefix) > maxPrefixLength || !plainText(k.Prefix):
		return &FieldError{Field: "prefix", Detail: fmt.Sprintf("prefix is at most %d bytes of text without control characters: the first of the key, never all of it", maxPrefixLength)}
	case k.Tier == "":
		return &FieldError{Field: "tier", Detail: "an API key belongs to a tier; write one, like FREE"}
	}
	return checkSums(k)
}

func checkSums(k KeyRecord) error {
	const how = `hash the key with printf %s "$KEY" | sha256sum`
	for _, sum := range [][32]byte{k.SHA256, k.PreviousSHA256} {
		if sum == HashKey("") {
			return &FieldError{Field: "sha256", Detail: "this is the SHA-256 of nothing, so the key was empty when it was hashed; " + how}
		}
	}
	switch {
	case k.SHA256 == [32]byte{}:
		return &FieldError{Field: "sha256", Detail: "the hash of the key is missing; " + how}
	case k.hasPrevious() == k.PreviousUntil.IsZero():
		return &FieldError{Field: "previous_until", Detail: "a key that was rotated has the hash of the key before and a time until when that works; give both or neither"}
	case k.SHA256 == k.PreviousSHA256:
		return &FieldError{Field: "sha256", Detail: "the new key is the same as the one before; make another"}
	}
	return nil
}

// CheckNewKey reports a key that would never work.
func CheckNewKey(k KeyRecord, now time.Time) error {
	if !k.ExpiresAt.IsZero() && !k.ExpiresAt.After(now) {
		return &FieldError{Field: "expires_at", Detail: "expires_at is not in the future; write a later time, or leave it out for a key that does not expire"}
	}
	return CheckKeyRecord(k)
}

// checkID allows what stands in a path of the admin API without escapes.
func checkID(id string) error {
	for _, c := range []byte(id) {
		if strings.IndexByte(base62, c) < 0 && c != '-' && c != '_' {
			return &FieldError{Field: "id", Detail: "an id is made of letters, digits, - and _; leave it out to have one made"}
		}
	}
	if id == "" || len(id) > maxIDLength {
		return &FieldError{Field: "id", Detail: fmt.Sprintf("an id has 1 to %d characters; leave it out to have one made", maxIDLength)}
	}
	return nil
}

// plainText reports whether people can read s and every store can keep it.
func plainText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// TierUse says what keeps a tier from being deleted; nil if nothing does.
func TierUse(name string, policies, keys int64) error {
	var uses []string
	if keys > 0 {
		uses = append(uses, fmt.Sprintf("%d API keys", keys))
	}
	if policies > 0 {
		uses = append(uses, fmt.Sprintf("%d policies", policies))
	}
	switch {
	case name == Anonymous:
		return fmt.Errorf("tier anonymous %w by every client without a key; it stays, but its limits can be changed", ErrInUse)
	case len(uses) > 0:
		return fmt.Errorf("tier %s %w by %s; delete them or give them another tier first", name, ErrInUse, strings.Join(uses, " and "))
	}
	return nil
}

// PageLimit is how many records a page has.
func (p Page) PageLimit() int {
	if p.Limit <= 0 {
		return DefaultPage
	}
	return min(p.Limit, MaxPage)
}

// Clone copies what the record shares with its original.
func (p PolicyRecord) Clone() PolicyRecord {
	p.Methods = slices.Clone(p.Methods)
	return p
}
