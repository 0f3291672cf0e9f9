-- Takes units from every bucket of one request: all or nothing.
--
-- KEYS     one key per bucket, all in one hash slot
-- ARGV[1]  the time in microseconds; empty (always, except in tests) means the
--          server's own clock
-- ARGV[2]  per bucket a byte and some numbers, "<d" each. The byte is the algorithm,
--          plus 128 for a shadow bucket, which is counted and never refuses:
--            1 token_bucket    num, den, capacity, cost
--            2 leaky_bucket    num, den, capacity, cost, longest
--            3 fixed_window    window, count, cost
--            4 sliding_window  window, count, cost
--            5 sliding_log     window, count, cost
--          The numbers are explained with the algorithms. The cost of the first two
--          is scaled: units times den.
--
-- If an enforced bucket refuses, nothing is written at all, and the buckets
-- that would have allowed report what they were before. A bucket that is only
-- looked at (cost 0) is never written. Whatever is written gets its TTL with it.
--
-- Reply: a string, "<d" of the time, then per bucket "<ddd": the microseconds
-- until the cost would pass (0 means allowed; below zero, allowed after that many),
-- whole units remaining, the microseconds until the bucket equals one never seen.
-- An error "WRONGTYPE <n>" says that the n-th key holds what no bucket is kept in.
local now = ARGV[1]
if now == '' then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
else
  now = tonumber(now)
end

local args, n = ARGV[2], #KEYS
local unpack, pack, call, pcall, byte = struct.unpack, struct.pack, redis.call, redis.pcall, string.byte

if n == 1 and byte(args) % 128 == 1 then -- the common case, in the shortest way
  local value = pcall('GET', KEYS[1])
  if type(value) ~= 'table' then
    local _, num, den, capacity, cost = unpack('<Bdddd', args)
    local retry, remaining, reset, state, ttl = token_bucket(value, now, num, den, capacity, cost)
    if state then call('SET', KEYS[1], state, 'PX', ttl) end
    return pack('<dddd', now, retry, remaining, reset)
  end
end

-- read returns the string in a key; false for none, and for the list of a sliding
-- log. Anything else is an error reply, a table.
local function read(key)
  local value = pcall('GET', key)
  if type(value) ~= 'table' then return value end
  if string.sub(value.err, 1, 9) == 'WRONGTYPE' and call('TYPE', key).ok == 'list' then return false end
  return value
end

-- look decides the i-th bucket, whose numbers stand at a position; free is true to
-- ask what a cost of nothing finds. It replies what the algorithm does, and the
-- position behind the numbers.
local values = {}
local function look(i, position, free)
  local what = byte(args, position) % 128
  local value = values[i]
  if value == nil and what ~= 5 then
    value = read(KEYS[i])
    if type(value) == 'table' then return value end
    values[i] = value
  end
  if what == 1 then
    local num, den, capacity, cost, next = unpack('<dddd', args, position + 1)
    return next, token_bucket(value, now, num, den, capacity, free and 0 or cost)
  elseif what == 2 then
    local num, den, capacity, cost, longest, next = unpack('<ddddd', args, position + 1)
    return next, leaky_bucket(value, now, num, den, capacity, free and 0 or cost, longest)
  end
  local window, count, cost, next = unpack('<ddd', args, position + 1)
  if free then cost = 0 end
  if what == 3 then
    return next, fixed_window(value, now, window, count, cost)
  elseif what == 4 then
    return next, sliding_window(value, now, window, count, cost)
  end
  return next, sliding_log(KEYS[i], now, window, count, cost)
end

local positions, states, ttls, reply, refused = {}, {}, {}, {}, false
local position = 1
for i = 1, n do
  positions[i] = position
  local next, retry, remaining, reset, state, ttl = look(i, position)
  local failure = type(next) == 'table' and next or type(retry) == 'table' and retry
  if failure then
    if string.sub(failure.err, 1, 9) ~= 'WRONGTYPE' then return failure end
    return redis.error_reply('WRONGTYPE ' .. i)
  end
  states[i], ttls[i] = state or false, ttl
  reply[i] = pack('<ddd', retry, remaining, reset)
  if retry > 0 and byte(args, position) < 128 then refused = true end
  position = next
end

for i = 1, n do
  local state = states[i]
  if state and refused then -- it would have allowed: say what it was before
    local _, _, remaining, reset = look(i, positions[i], true)
    reply[i] = pack('<ddd', 0, remaining, reset)
  elseif type(state) == 'function' then
    state()
  elseif state then
    call('SET', KEYS[i], state, 'PX', ttls[i])
  end
end
return pack('<d', now) .. table.concat(reply)
