package testserver

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// slots is how many hash slots a Redis Cluster has.
const slots = 16384

// NewCluster starts a Redis Cluster of n masters without replicas, the slots
// shared out evenly and in order, and stops it at the test's end. It returns
// when every node sees the Cluster complete.
func NewCluster(tb testing.TB, n int, args ...string) []*Redis {
	tb.Helper()
	nodes := make([]*Redis, n)
	for i := range nodes {
		own := append([]string{
			"--cluster-enabled", "yes",
			"--cluster-config-file", filepath.Join(tb.TempDir(), "nodes.conf"),
			"--cluster-node-timeout", "2000",
		}, args...)
		nodes[i] = NewRedis(tb, own...)
	}
	for i, node := range nodes {
		first, last := i*slots/n, (i+1)*slots/n-1
		commands := []string{fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", first, last)}
		if i > 0 {
			commands = append(commands, "CLUSTER MEET 127.0.0.1 "+strconv.Itoa(nodes[0].Port()))
		}
		for _, command := range commands {
			if reply, err := node.inline(command); err != nil || reply != "+OK" {
				tb.Fatalf("%s: %s %v", command, reply, err)
			}
		}
	}
	for _, node := range nodes {
		if err := node.proc.waitReady(func() error { return node.seesCluster(n) }); err != nil {
			tb.Fatal(err)
		}
	}
	return nodes
}

// seesCluster reports whether the node knows all the others and all the slots.
func (r *Redis) seesCluster(n int) error {
	info, err := r.inline("CLUSTER INFO")
	if err != nil {
		return err
	}
	for _, want := range []string{"cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d\r\n", n), fmt.Sprintf("cluster_size:%d\r\n", n)} {
		if !strings.Contains(info, want) {
			return fmt.Errorf("no %s in %s", strings.TrimSpace(want), info)
		}
	}
	return nil
}
