package conformance

// changedAlgorithmLedgers are about a bucket whose limit gets another algorithm.
// They start at midnight.
var changedAlgorithmLedgers = []ledger{
	{"it is as if never seen, until a charge replaces what was there", []row{
		{0, "10/1m", 10, pass(0, 60*sec)},
		{0, "10/1m fixed_window", 0, pass(10, 0)},
		{0, "10/1m", 1, refuse(0, 6*sec, 60*sec)},
		{0, "10/1m fixed_window", 4, pass(6, 60*sec)},
		{0, "10/1m", 0, pass(10, 0)},
		{0, "10/1m fixed_window", 7, refuse(6, 60*sec, 60*sec)},
	}},
	{"a token bucket and a leaky one are not each other's", []row{
		{0, "10/1m", 10, pass(0, 60*sec)},
		{0, "10/1m max_delay 12s leaky_bucket", 1, pass(2, 6*sec)},
		{0, "10/1m", 10, pass(0, 60*sec)},
	}},
	{"the two windows are not each other's", []row{
		{0, "10/1m fixed_window", 10, pass(0, 60*sec)},
		{0, "10/1m sliding_window", 10, pass(0, 120*sec)},
		{0, "10/1m fixed_window", 10, pass(0, 60*sec)},
	}},
	{"a log gives way to a bucket, and a bucket to a log", []row{
		{0, "10/1m sliding_log", 6, pass(4, 60*sec)},
		{1 * sec, "", 4, pass(0, 60*sec)},
		{1 * sec, "10/1m", 0, pass(10, 0)},
		{1 * sec, "10/1m sliding_log", 1, refuse(0, 59*sec, 60*sec)},
		{1 * sec, "10/1m", 10, pass(0, 60*sec)},
		{1 * sec, "10/1m sliding_log", 10, pass(0, 60*sec)},
		{1 * sec, "", 1, refuse(0, 60*sec, 60*sec)},
	}},
	{"a later clock of the other algorithm is forgotten with it", []row{
		{hour, "10/1m", 10, pass(0, 60*sec)},
		{0, "10/1m sliding_log", 3, pass(7, 60*sec)},
		{30 * sec, "", 7, pass(0, 60*sec)},
		{60 * sec, "", 3, pass(0, 60*sec)},
	}},
}
