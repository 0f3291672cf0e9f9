-- Takes units from every bucket of one request: all or nothing.
--
-- KEYS     one key per bucket, all in one hash slot
-- ARGV[1]  the time in microseconds; empty (always, except in tests) means the
--          server's own clock
-- ARGV[2]  per bucket 33 bytes, "<Bdddd": what, num, den, capacity, cost.
--          what is the algorithm (1 token_bucket), plus 128 for a shadow
--          bucket, which is counted and never refuses. cost is scaled: units
--          times den. The other numbers are explained with the algorithm.
--
-- If an enforced bucket refuses, nothing is written at all, and the buckets
-- that would have allowed report what they were before. A bucket that is only
-- looked at (cost 0) is never written. Whatever is written gets its TTL with it.
--
-- Reply: a string, "<d" of the time, then per bucket "<ddd": the microseconds
-- until the cost would pass (0 means allowed), whole units remaining, the
-- microseconds until the bucket equals one never seen.
-- An error "WRONGTYPE <n>" says that the n-th key holds something else than
-- a string.
local now = ARGV[1]
if now == '' then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
else
  now = tonumber(now)
end

local args, n = ARGV[2], #KEYS
local unpack, pack, call, pcall = struct.unpack, struct.pack, redis.call, redis.pcall

if n == 1 then
  local value = pcall('GET', KEYS[1])
  if type(value) ~= 'table' then
    local _, num, den, capacity, cost = unpack('<Bdddd', args)
    local retry, remaining, reset, state, ttl = token_bucket(value, now, num, den, capacity, cost)
    if state then call('SET', KEYS[1], state, 'PX', ttl) end
    return pack('<dddd', now, retry, remaining, reset)
  end
end

local values, states, ttls, reply, refused = {}, {}, {}, {}, false
for i = 1, n do
  local value = pcall('GET', KEYS[i])
  if type(value) == 'table' then
    if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then return value end
    return redis.error_reply('WRONGTYPE ' .. i)
  end
  local what, num, den, capacity, cost = unpack('<Bdddd', args, i * 33 - 32)
  local retry, remaining, reset, state, ttl = token_bucket(value, now, num, den, capacity, cost)
  values[i], states[i], ttls[i] = value, state or false, ttl or false
  reply[i] = pack('<ddd', retry, remaining, reset)
  if retry > 0 and what < 128 then refused = true end
end

for i = 1, n do
  if states[i] and not refused then
    call('SET', KEYS[i], states[i], 'PX', ttls[i])
  elseif states[i] then -- it would have allowed: say what it was before
    local _, num, den, capacity = unpack('<Bdddd', args, i * 33 - 32)
    local _, remaining, reset = token_bucket(values[i], now, num, den, capacity, 0)
    reply[i] = pack('<ddd', 0, remaining, reset)
  end
end
return pack('<d', now) .. table.concat(reply)
