package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// redisServer is the Redis that all cases share.
type redisServer struct{ url, addr string }

var scriptStats = regexp.MustCompile(`(?m)^cmdstat_(?:eval|evalsha|eval_ro|evalsha_ro|fcall):calls=(\d+)`)

// scriptCalls counts the scripts that Redis was asked to run since its start.
func (r redisServer) scriptCalls() (int64, error) {
	stats, err := r.command("INFO commandstats")
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, m := range scriptStats.FindAllStringSubmatch(stats, -1) {
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

var usedMemory = regexp.MustCompile(`(?m)^used_memory:(\d+)`)

// bytesPerKey measures what a key takes, everything included, by removing them
// all. It returns 0 if there is none.
func (r redisServer) bytesPerKey() (int64, error) {
	keys, err := r.number("DBSIZE", regexp.MustCompile(`(\d+)`))
	if err != nil || keys == 0 {
		return 0, err
	}
	before, err := r.number("INFO memory", usedMemory)
	if err != nil {
		return 0, err
	}
	if _, err := r.command("FLUSHALL"); err != nil {
		return 0, err
	}
	after, err := r.number("INFO memory", usedMemory)
	return (before - after) / keys, err
}

// number runs a command and returns the number that a pattern captures in its
// reply.
func (r redisServer) number(command string, pattern *regexp.Regexp) (int64, error) {
	reply, err := r.command(command)
	if err != nil {
		return 0, err
	}
	m := pattern.FindStringSubmatch(reply)
	if m == nil {
		return 0, fmt.Errorf("redis: unexpected reply to %s: %q", command, reply)
	}
	return strconv.ParseInt(m[1], 10, 64)
}

// command runs one command on a connection of its own, and returns a status, a
// number or a string as text.
func (r redisServer) command(command string) (string, error) {
	conn, err := net.DialTimeout("tcp", r.addr, askTimeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(askTimeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	return readReply(bufio.NewReader(conn))
}

// readReply reads a reply of Redis's protocol that is no list.
func readReply(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	kind, rest := line[:min(1, len(line))], line[min(1, len(line)):]
	switch kind {
	case "+", ":":
		return rest, nil
	case "$":
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", fmt.Errorf("redis: no string: %q", line)
		}
		text := make([]byte, n)
		_, err = io.ReadFull(in, text)
		return string(text), err
	}
	return "", fmt.Errorf("redis: %s", line)
}
