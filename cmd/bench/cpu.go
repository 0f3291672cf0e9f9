package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// cpuOf returns how much processor time a process has taken so far, in user and in
// system mode (Linux: proc_pid_stat(5)).
func cpuOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(stat))
}

// tick is the unit of times in /proc, the same on all of Linux's common platforms.
const tick = time.Second / 100

func parseStat(stat string) (time.Duration, error) {
	// the name of the program, in brackets, may hold anything
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/<pid>/stat has too few fields: %q", stat)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, errors.Join(err, err2)
}

var usedCPU = regexp.MustCompile(`(?m)^used_cpu_(?:sys|user):([\d.]+)`)

// cpu returns how much processor time Redis has taken since its start.
func (r redisServer) cpu() (time.Duration, error) {
	info, err := r.command("INFO cpu")
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, m := range usedCPU.FindAllStringSubmatch(info, -1) {
		seconds, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, err
		}
		sum += seconds
	}
	return time.Duration(sum * float64(time.Second)), nil
}
