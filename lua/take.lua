-- Takes units from every bucket of a request: all or nothing. Several requests may
-- travel together, and several equal ones as one; each is decided by itself, in
-- order, all of them at one instant.
--
-- KEYS     one key per bucket, request by request; in a Cluster all in one hash slot
-- ARGV[1]  the time, see begin.lua
-- ARGV[2]  per bucket a byte and some numbers, "<d" each. The byte is the algorithm,
--          plus 128 for a shadow bucket, which is counted and never refuses:
--            1 token_bucket    num, den, capacity, cost
--            2 leaky_bucket    num, den, capacity, cost, longest
--            3 fixed_window    window, count, cost
--            4 sliding_window  window, count, cost
--            5 sliding_log     window, count, cost
--          The numbers are explained with the algorithms. The cost of the first two
--          is scaled: units times den.
-- ARGV[3]  per request "<HH": how many buckets it has, and how many equal requests it
--          stands for. Absent if there is one request, asked once.
--
-- If an enforced bucket refuses, nothing is written at all, and the buckets
-- that would have allowed report what they were before. A bucket that is only
-- looked at (cost 0) is never written. Whatever is written gets its TTL with it.
--
-- Reply: a string, "<d" of the time, then the decisions of each bucket, "<ddd": the
-- microseconds until the cost would pass (0 means allowed; below zero, allowed after
-- that many), whole units remaining, the microseconds until the bucket equals one
-- never seen. An error "WRONGTYPE <n>" says that the n-th key holds what no bucket is
-- kept in.
-- With ARGV[3], the decisions of each request are preceded by "<H": how many times
-- they follow. Of equal requests that is one time for each, in order, but at the end
-- those are left out that are decided like the one before them. 0 stands for an error
-- of this request alone, and is followed by "<H" and a text of that length.

local args = ARGV[2]
local values, ttls = {}, {} -- of the keys: what was read or is to be written, and for how long
local positions = {} -- of the keys: where in args their numbers stand
do
  local sizes, position = {33, 41, 25, 25, 25}, 1
  for i = 1, #KEYS do
    positions[i] = position
    position = position + sizes[byte(args, position) % 128]
  end
end

-- read returns the string in a key; false for none, and for the list of a sliding
-- log. Anything else is an error reply, a table.
local function read(key)
  local value = try('GET', key)
  if type(value) ~= 'table' then return value end
  if string.sub(value.err, 1, 9) == 'WRONGTYPE' and call('TYPE', key).ok == 'list' then return false end
  return value
end

-- look decides the bucket of the i-th key; free is true to ask what a cost of nothing
-- finds. It replies what the algorithm does, or an error reply.
local function look(i, free)
  local position, value = positions[i], values[i]
  local what = byte(args, position) % 128
  if value == nil and what ~= 5 then
    value = read(KEYS[i])
    if type(value) == 'table' then return value end
    values[i] = value
  end
  if what == 1 then
    local num, den, capacity, cost = unpack('<dddd', args, position + 1)
    return token_bucket(value, now, num, den, capacity, free and 0 or cost)
  elseif what == 2 then
    local num, den, capacity, cost, longest = unpack('<ddddd', args, position + 1)
    return leaky_bucket(value, now, num, den, capacity, free and 0 or cost, longest)
  end
  local window, count, cost = unpack('<ddd', args, position + 1)
  if free then cost = 0 end
  if what == 3 then
    return fixed_window(value, now, window, count, cost)
  elseif what == 4 then
    return sliding_window(value, now, window, count, cost)
  end
  return sliding_log(KEYS[i], now, window, count, cost)
end

-- keep remembers the state of the i-th key, to be written at the end of its request;
-- only a sliding log writes by itself.
local function keep(i, state, ttl)
  if type(state) == 'function' then
    state()
  else
    values[i], ttls[i] = state, ttl
  end
end

-- failed is the error of a request of which the i-th bucket cannot be read.
local function failed(reply, i)
  if string.sub(reply.err, 1, 9) == 'WRONGTYPE' then return nil, 'WRONGTYPE ' .. i end
  return nil, reply.err
end

-- decide decides a request once, of the keys from first to last. It replies the
-- decisions and whether anything was taken, or nil and an error's text.
local function decide(first, last)
  if first == last then
    local retry, remaining, reset, state, ttl = look(first)
    if type(retry) == 'table' then return failed(retry, 1) end
    if state then keep(first, state, ttl) end
    return pack('<ddd', retry, remaining, reset), state
  end
  local states, lives, reply, refused, took = {}, {}, {}, false, false
  for i = first, last do
    local retry, remaining, reset, state, ttl = look(i)
    if type(retry) == 'table' then return failed(retry, i - first + 1) end
    states[i], lives[i] = state or false, ttl
    reply[i - first + 1] = pack('<ddd', retry, remaining, reset)
    if retry > 0 and byte(args, positions[i]) < 128 then refused = true end
  end
  for i = first, last do
    if states[i] and refused then -- it would have allowed: say what it was before
      local _, remaining, reset = look(i, true)
      reply[i - first + 1] = pack('<ddd', 0, remaining, reset)
    elseif states[i] then
      keep(i, states[i], lives[i])
      took = true
    end
  end
  return table.concat(reply), took
end

-- take decides a request up to a number of times, as long as anything is taken, and
-- then writes. It replies the decisions, and how many they are; or nil and a text.
local function take(first, last, times)
  local decisions, took = decide(first, last)
  if not decisions then return nil, took end
  local all, n = decisions, 1
  if took and times > 1 then
    local list = {decisions}
    repeat
      decisions, took = decide(first, last)
      if not decisions then return nil, took end
      n = n + 1
      list[n] = decisions
    until not took or n == times
    all = table.concat(list)
  end
  for i = first, last do
    if ttls[i] then
      local written = try('PSETEX', KEYS[i], ttls[i], values[i])
      if written.err then return nil, written.err end
    end
  end
  return all, n
end

if not ARGV[3] then
  local decisions, failure = take(1, #KEYS, 1)
  if not decisions then return redis.error_reply(failure) end
  return pack('<d', now) .. decisions
end

reply = reply or {pack('<d', now)}
local first, last = 1, #reply - 1 -- those that take_one.lua has decided had a key each
for r = 4 * last + 1, #ARGV[3], 4 do
  local buckets, times = unpack('<HH', ARGV[3], r)
  first, last = last + 1, last + buckets
  local part
  if buckets == 1 and byte(args, positions[first]) % 128 == 1 then
    part = take_one(KEYS[first], positions[first], times)
  end
  if not part then
    local ran, decisions, n = pcall(take, first, last, times) -- whatever it finds, the others go on
    if ran and decisions then
      part = pack('<H', n) .. decisions
    else
      local failure = ran and n or type(decisions) == 'table' and decisions.err or 'ERR ' .. decisions
      part = pack('<HH', 0, #failure) .. failure
    end
  end
  reply[#reply + 1] = part
end
return table.concat(reply)
