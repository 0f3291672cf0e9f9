package conformance

// slidingWindowLedgers is the sliding window, number by number. They start at
// midnight.
var slidingWindowLedgers = []ledger{
	{"the window before counts for the share that is still covered", []row{
		{0, "10/1m sliding_window", 10, pass(0, 120*sec)},
		{60 * sec, "", 0, pass(0, 60*sec)},
		{66*sec - us, "", 0, pass(0, 54*sec+us)},
		{66 * sec, "", 0, pass(1, 54*sec)},
		{90*sec - us, "", 0, pass(4, 30*sec+us)},
		{90 * sec, "", 0, pass(5, 30*sec)},
		{90 * sec, "", 5, pass(0, 90*sec)},
		{120 * sec, "", 0, pass(5, 60*sec)},
		{180 * sec, "", 0, pass(10, 0)},
	}},
	{"a refusal says when to come back, to the microsecond", []row{
		{0, "10/1m sliding_window", 1, pass(9, 120*sec)},
		{30 * sec, "", 9, pass(0, 90*sec)},
		{30 * sec, "", 1, refuse(0, 36*sec, 90*sec)},
		{66*sec - us, "", 1, refuse(0, us, 54*sec+us)},
		{66 * sec, "", 1, pass(0, 114*sec)},
		{66 * sec, "", 1, refuse(0, 6*sec, 114*sec)},
		{72*sec - us, "", 1, refuse(0, us, 108*sec+us)},
		{72 * sec, "", 1, pass(0, 108*sec)},
	}},
	{"a cost of the whole limit waits for two windows", []row{
		{0, "10/1m sliding_window", 10, pass(0, 120*sec)},
		{0, "", 10, refuse(0, 120*sec, 120*sec)},
		{120*sec - us, "", 10, refuse(9, us, us)},
		{120 * sec, "", 10, pass(0, 120*sec)},
	}},
	{"a cost waits for the end of the window if that is enough", []row{
		{50 * sec, "10/1m sliding_window", 6, pass(4, 70*sec)},
		{50 * sec, "", 5, refuse(4, 20*sec, 70*sec)}, // 6 x 50 s are 5 x 60 s
		{50 * sec, "", 4, pass(0, 70*sec)},
		{60 * sec, "", 0, pass(0, 60*sec)},
	}},
	{"around a boundary nearly twice the count passes, and no more", []row{
		{60*sec - us, "10/1m sliding_window", 10, pass(0, 60*sec+us)},
		{66 * sec, "", 1, pass(0, 114*sec)},
		{90 * sec, "", 4, pass(0, 90*sec)},
		{114 * sec, "", 4, pass(0, 66*sec)},
		{120*sec - 2*us, "", 1, refuse(0, 2*us, 60*sec+2*us)},
		{120 * sec, "", 1, pass(0, 120*sec)},
	}},
	{"7/1m at its odd moments", []row{
		{0, "7/1m sliding_window", 7, pass(0, 120*sec)},
		{0, "", 1, refuse(0, 68_571_429*us, 120*sec)},
		{68_571_428 * us, "", 1, refuse(0, us, 51_428_572*us)},
		{68_571_429 * us, "", 1, pass(0, 111_428_571*us)},
	}},
	{"a count close to the largest that is exact", []row{ // 0.96 * 2^53
		{0, "100000/1d sliding_window", 100_000, pass(0, 2*day)},
		{0, "", 1, refuse(0, day+864_000*us, 2*day)},
		{day + 863_999*us, "", 1, refuse(0, us, day-863_999*us)},
		{day + 864_000*us, "", 1, pass(0, 2*day-864_000*us)},
	}},
	{"one in 100 days", []row{ // midnight is day 20527, 27 more than a multiple of 100
		{0, "1/100d sliding_window", 1, pass(0, 173*day)},
		{0, "", 1, refuse(0, 173*day, 173*day)},
		{173*day - us, "", 1, refuse(0, us, us)},
		{173 * day, "", 1, pass(0, 200*day)},
	}},
	{"a refusal takes nothing, and a cost of nothing looks", []row{
		{0, "10/1m sliding_window", 0, pass(10, 0)},
		{0, "", 4, pass(6, 120*sec)},
		{0, "", 0, pass(6, 120*sec)},
		{0, "", 7, refuse(6, 75*sec, 120*sec)},
		{0, "", 7, refuse(6, 75*sec, 120*sec)},
		{0, "", 6, pass(0, 120*sec)},
		{0, "", 0, pass(0, 120*sec)},
	}},
	{"a long idle window is full and not fuller", []row{
		{0, "10/1m sliding_window", 10, pass(0, 120*sec)},
		{400 * day, "", 10, pass(0, 120*sec)},
		{400 * day, "", 1, refuse(0, 66*sec, 120*sec)},
	}},
	{"a clock set back opens no window again", []row{
		{60 * sec, "10/1m sliding_window", 4, pass(6, 120*sec)},
		{0, "", 6, pass(0, 120*sec)},
		{30 * sec, "", 1, refuse(0, 66*sec, 120*sec)},
		{90 * sec, "", 1, refuse(0, 36*sec, 90*sec)},
		{126 * sec, "", 1, pass(0, 114*sec)},
		{110 * sec, "", 0, pass(0, 114*sec)},
	}},
	{"a raised limit is free at once, but for what was used", []row{
		{0, "10/1m sliding_window", 10, pass(0, 120*sec)},
		{0, "100/1m sliding_window", 0, pass(90, 120*sec)},
		{0, "", 91, refuse(90, 66*sec, 120*sec)},
		{0, "", 90, pass(0, 120*sec)},
	}},
	{"a lowered limit holds at once, and is forgotten by no refusal", []row{
		{0, "100/1m sliding_window", 50, pass(50, 120*sec)},
		{0, "10/1m sliding_window", 1, refuse(0, 66*sec, 120*sec)},
		{0, "", 0, pass(0, 120*sec)},
		{0, "100/1m sliding_window", 0, pass(50, 120*sec)},
		{66*sec - us, "10/1m sliding_window", 1, refuse(0, us, 54*sec+us)},
		{66 * sec, "", 1, pass(0, 114*sec)},
		{66 * sec, "100/1m sliding_window", 0, pass(90, 114*sec)},
	}},
	{"a lowered limit holds for both windows", []row{
		{0, "100/1m sliding_window", 40, pass(60, 120*sec)},
		{60 * sec, "", 5, pass(55, 120*sec)},
		{60 * sec, "10/1m sliding_window", 0, pass(0, 120*sec)},
		{60 * sec, "", 2, refuse(0, 42*sec, 120*sec)},
		{60 * sec, "", 6, refuse(0, 72*sec, 120*sec)}, // 5 x 48 s are 4 x 60 s
		{102*sec - us, "", 2, refuse(1, us, 78*sec+us)},
		{102 * sec, "", 2, pass(0, 78*sec)},
	}},
	{"a longer window keeps what was estimated of the shorter one, rounded up", []row{
		{0, "10/1m sliding_window", 5, pass(5, 120*sec)},
		{75 * sec, "", 1, pass(5, 105*sec)}, // 1 and 5 x 45/60 are 4.75
		{80 * sec, "10/1h sliding_window", 0, pass(5, 2*hour-80*sec)},
		{80 * sec, "", 6, refuse(5, 4240*sec, 2*hour-80*sec)}, // 5 x 2880 s are 4 x 3600 s
		{80 * sec, "", 5, pass(0, 2*hour-80*sec)},
	}},
	{"what the shorter window estimated is exact to the microsecond", []row{
		{0, "10/1m sliding_window", 4, pass(6, 120*sec)},
		{75*sec - us, "", 1, pass(5, 105*sec+us)}, // 4 x 45.000001/60 are a little above 3
		{75*sec - us, "10/1h sliding_window", 0, pass(5, 2*hour-75*sec+us)},
	}},
	{"a shorter window counts from the last time, and says when it is over", []row{
		{0, "10/1h sliding_window", 9, pass(1, 2*hour)},
		{30 * minute, "", 1, pass(0, 90*minute)},
		{30*minute + 30*sec, "10/1m sliding_window", 1, refuse(0, 36*sec, 90*sec)},
		{31*minute + 6*sec - us, "", 1, refuse(0, us, 54*sec+us)},
		{31*minute + 6*sec, "", 1, pass(0, 114*sec)},
	}},
}
