-- token_bucket_step(used, num, den, capacity, cost)
--
-- Decides one token bucket of which `used` is in use: what does not fit into it is
-- refused. cost and capacity are scaled; see bucket.lua for the rest. It replies the
-- first three of the numbers below, and what is in use then.
local function token_bucket_step(used, num, den, capacity, cost)
  local over, retry = used - (capacity - cost), 0
  if over > 0 then
    retry = math.ceil(over / num)
  else
    used = used + cost
  end
  local free = capacity - used
  return retry, (free - free % den) / den, math.ceil(used / num), used
end

-- token_bucket(value, now, num, den, capacity, cost)
--
-- Decides one token bucket that is stored as value.
--
-- Reply, in this order, as of every algorithm:
--   retry      0 if the cost fits; else the microseconds until it would
--   remaining  whole units left
--   reset      microseconds until the bucket equals one never seen
--   state      what to store if the request passes; nil for "write nothing"
--   ttl        milliseconds to store it for
local function token_bucket(value, now, num, den, capacity, cost)
  local used
  used, now = bucket_used(1, value, now, num, den, capacity)
  local retry, remaining, reset, after = token_bucket_step(used, num, den, capacity, cost)
  if after == used then return retry, remaining, reset end
  return retry, remaining, reset, struct.pack('<Bddd', 1, now, after, den), math.ceil(reset / 1000)
end
