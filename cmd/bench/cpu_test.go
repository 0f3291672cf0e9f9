package main

import (
	"os"
	"testing"
	"time"
)

func TestProcessorTimeIsReadPastAnyNameOfTheProgram(t *testing.T) {
	t.Parallel()
	const stat = "4711 (a) 9 9 (b) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 15"
	if got, err := parseStat(stat); err != nil || got != 3*time.Second {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := parseStat("4711 (a) S 1"); err == nil {
		t.Errorf("a short line gives %v", got)
	}
	if _, err := cpuOf(os.Getpid()); err != nil {
		t.Error(err)
	}
}
