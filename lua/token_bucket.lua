-- token_bucket(value, now, num, den, capacity, cost)
--
-- Decides one token bucket: what does not fit into it is refused. cost and
-- capacity are scaled; see bucket.lua for the rest.
--
-- Reply, in this order, as of every algorithm:
--   retry      0 if the cost fits; else the microseconds until it would
--   remaining  whole units left
--   reset      microseconds until the bucket equals one never seen
--   state      what to store if the request passes; nil for "write nothing"
--   ttl        milliseconds to store it for
local function token_bucket(value, now, num, den, capacity, cost)
  local ceil, used = math.ceil, 0
  used, now = bucket_used(1, value, now, num, den, capacity)
  local over = used - (capacity - cost)
  if over > 0 then
    local free = capacity - used
    return ceil(over / num), (free - free % den) / den, ceil(used / num)
  end
  used = used + cost
  local free, reset = capacity - used, ceil(used / num)
  if cost == 0 then
    return 0, (free - free % den) / den, reset
  end
  return 0, (free - free % den) / den, reset, struct.pack('<Bddd', 1, now, used, den), ceil(reset / 1000)
end
