package conformance

import "time"

// leakyBucketLedgers is the queue, number by number. The comments give what is
// scaled how: every microsecond num leave, and a unit adds den.
var leakyBucketLedgers = []ledger{
	{"requests at once leave one by one, and the queue is as long as the longest delay", []row{ // num 1, den 6000000
		{0, "10/1m max_delay 12s leaky_bucket", 1, pass(2, 6*sec)},
		{0, "", 1, queued(1, 6*sec, 12*sec)},
		{0, "", 1, queued(0, 12*sec, 18*sec)},
		{0, "", 1, refuse(0, 6*sec, 18*sec)},
		{0, "", 1, refuse(0, 6*sec, 18*sec)},
		{6*sec - us, "", 1, refuse(0, us, 12*sec+us)},
		{6 * sec, "", 1, queued(0, 12*sec, 18*sec)},
		{6 * sec, "", 1, refuse(0, 6*sec, 18*sec)},
	}},
	{"a request that comes in its turn is not delayed", []row{
		{0, "10/1m max_delay 12s leaky_bucket", 1, pass(2, 6*sec)},
		{1 * sec, "", 1, queued(1, 5*sec, 11*sec)},
		{12 * sec, "", 1, pass(2, 6*sec)},
		{18 * sec, "", 1, pass(2, 6*sec)},
	}},
	{"without a longest delay requests are spaced out and none waits", []row{ // num 1, den 10000000
		{0, "6/1m leaky_bucket", 0, pass(1, 0)},
		{0, "", 1, pass(0, 10*sec)},
		{0, "", 1, refuse(0, 10*sec, 10*sec)},
		{10*sec - us, "", 1, refuse(0, us, us)},
		{10 * sec, "", 1, pass(0, 10*sec)},
	}},
	{"a cost takes its whole time, and only those behind it wait", []row{
		{0, "10/1m max_delay 12s leaky_bucket", 10, pass(0, 60*sec)},
		{0, "", 1, refuse(0, 48*sec, 60*sec)},
		{48*sec - us, "", 1, refuse(0, us, 12*sec+us)},
		{48 * sec, "", 10, queued(0, 12*sec, 72*sec)},
		{48 * sec, "", 1, refuse(0, 60*sec, 72*sec)},
	}},
	{"7/1m lets exactly seven leave in a minute and no more", []row{ // num 7, den 60000000
		{0, "7/1m max_delay 10s leaky_bucket", 1, pass(1, 8_571_429*us)},
		{0, "", 1, queued(0, 8_571_429*us, 17_142_858*us)},
		{0, "", 1, refuse(0, 7_142_858*us, 17_142_858*us)},
		{7_142_857 * us, "", 1, refuse(0, us, 10_000_001*us)},
		{7_142_858 * us, "", 1, queued(0, 10*sec, 18_571_428*us)},
	}},
	{"a million a second", []row{ // num 1, den 1
		{0, "10000000/10s max_delay 10m leaky_bucket", 10_000_000, pass(590_000_001, 10*sec)},
		{0, "", 1, queued(590_000_000, 10*sec, 10*sec+us)},
		{0, "", 1, queued(589_999_999, 10*sec+us, 10*sec+2*us)},
	}},
	{"one in 366 days", []row{
		{0, "1/366d max_delay 10m leaky_bucket", 1, pass(0, 366*day)},
		{0, "", 1, refuse(0, 366*day-10*minute, 366*day)},
		{366*day - 10*minute - us, "", 1, refuse(0, us, 10*minute+us)},
		{366*day - 10*minute, "", 1, queued(0, 10*minute, 366*day+10*minute)},
	}},
	{"a cost of nothing looks, takes nothing, is not refused and not delayed", []row{
		{0, "10/1m max_delay 12s leaky_bucket", 0, pass(3, 0)},
		{0, "", 1, pass(2, 6*sec)},
		{0, "", 0, pass(2, 6*sec)},
		{0, "", 1, queued(1, 6*sec, 12*sec)},
		{0, "", 1, queued(0, 12*sec, 18*sec)},
		{0, "", 0, pass(0, 18*sec)},
		{6 * sec, "", 0, pass(1, 12*sec)},
		{18 * sec, "", 0, pass(3, 0)},
	}},
	{"a long idle queue is empty and not emptier", []row{
		{0, "10/1m max_delay 12s leaky_bucket", 10, pass(0, 60*sec)},
		{400 * day, "", 0, pass(3, 0)},
		{400 * day, "", 10, pass(0, 60*sec)},
		{400 * day, "", 1, refuse(0, 48*sec, 60*sec)},
	}},
	{"a clock set back lets nothing leave", []row{
		{0, "10/1m max_delay 12s leaky_bucket", 1, pass(2, 6*sec)},
		{-1 * hour, "", 1, queued(1, 6*sec, 12*sec)},
		{-1 * hour, "", 1, queued(0, 12*sec, 18*sec)},
		{0, "", 1, refuse(0, 6*sec, 18*sec)},
		{6 * sec, "", 1, queued(0, 12*sec, 18*sec)},
	}},
	{"a raised limit lets those in the queue leave faster", []row{ // den 6000000, then 600000
		{0, "10/1m max_delay 12s leaky_bucket", 1, pass(2, 6*sec)},
		{0, "", 1, queued(1, 6*sec, 12*sec)},
		{0, "", 1, queued(0, 12*sec, 18*sec)},
		{0, "100/1m max_delay 12s leaky_bucket", 0, pass(18, 1800*time.Millisecond)},
		{0, "", 1, queued(17, 1800*time.Millisecond, 2400*time.Millisecond)},
	}},
	{"a lowered limit holds at once, with a queue no longer than its own can be", []row{
		{0, "100/1m max_delay 12s leaky_bucket", 100, pass(0, 60*sec)},
		{0, "10/1m max_delay 12s leaky_bucket", 1, refuse(0, 60*sec, 72*sec)},
		{30 * sec, "", 1, refuse(0, 30*sec, 42*sec)},
		{60*sec - us, "", 1, refuse(0, us, 12*sec+us)},
	}},
	{"a changed longest delay holds at once", []row{
		{0, "10/1m max_delay 12s leaky_bucket", 3, pass(0, 18*sec)},
		{0, "10/1m leaky_bucket", 1, refuse(0, 18*sec, 18*sec)},
		{0, "10/1m max_delay 30s leaky_bucket", 1, queued(2, 18*sec, 24*sec)},
		{0, "", 1, queued(1, 24*sec, 30*sec)},
		{0, "", 1, queued(0, 30*sec, 36*sec)},
		{0, "", 1, refuse(0, 6*sec, 36*sec)},
	}},
	{"a longer window keeps the queue and slows it", []row{ // den 6000000, then 360000000
		{0, "10/1m max_delay 12s leaky_bucket", 2, pass(1, 12*sec)},
		{0, "10/1h max_delay 12s leaky_bucket", 1, refuse(0, 12*minute-12*sec, 12*minute)},
		{0, "10/1m max_delay 12s leaky_bucket", 1, queued(0, 12*sec, 18*sec)},
	}},
}
