package integration_test

import (
	"fmt"
	"sync"
	"testing"
)

// sharing is managed with Caddy's storage in a folder that two processes share.
const sharing = `
{
	storage file_system {$STORAGE}
	rate_limit {
		provider embedded
	}
}
:{$PORT} {
	rate_limit {
		tiers
	}
	respond "{http.rate_limit.tier} {http.rate_limit.identity}"
}
:{$PORT2} {
	rate_limit_admin {
		jwt {
			secret ` + adminSecret + `
		}
	}
}`

// work raises the limit of a policy again and again until that fails, and returns
// how often it succeeded.
func (m *manager) work(path string, begun *sync.WaitGroup) (raised int64) {
	_, err := m.increase(path)
	if err != nil {
		m.t.Errorf("the first change of the process to be killed: %v", err)
	}
	begun.Done()
	for err == nil {
		raised++
		_, err = m.increase(path)
	}
	return raised
}

// One of two processes with one storage is killed while both make changes. What it
// was about to do keeps the other from nothing, and what was answered stays.
func TestAProcessThatIsKilledWhileItChangesAStoreLocksNobodyOut(t *testing.T) {
	t.Parallel()
	const victims, path = 4, "/policies/default-pro"
	storage := "STORAGE=" + t.TempDir()
	survivor := startCaddy(t, sharing, storage)
	m := manage(survivor)
	want := m.do(200, "GET", path, "").read(t).Limit
	for round := range 3 {
		victim := startCaddy(t, sharing, storage)
		var begun, ended sync.WaitGroup
		var mu sync.Mutex
		raised := int64(0)
		begun.Add(victims)
		for i := range victims {
			worker := manageAs(victim, fmt.Sprintf("worker-%d-%d", round, i), "ADMIN")
			ended.Go(func() {
				n := worker.work(path, &begun)
				mu.Lock()
				defer mu.Unlock()
				raised += n
			})
		}
		if _, err := m.increase(path); err != nil {
			t.Error(err)
		}
		begun.Wait()
		victim.cmd.Process.Kill()
		ended.Wait()
		if _, err := m.increase(path); err != nil {
			t.Errorf("after the other was killed: %v", err)
		}
		// what the victims were not told may have been done all the same
		want += raised + 2
		got := m.do(200, "GET", path, "").read(t).Limit
		if got < want || got > want+victims {
			t.Errorf("round %d: the limit is %d, want %d to %d", round, got, want, want+victims)
		}
		want = got
		m.do(200, "GET", "/healthz", "")
	}
	if n, changes := want-600, int64(len(m.list("/audit"))); n != changes {
		t.Errorf("the limit was raised %d times, and the audit has %d changes", n, changes)
	}
}
