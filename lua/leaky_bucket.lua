-- leaky_bucket(value, now, num, den, capacity, cost, longest)
--
-- Decides one leaky bucket: a queue that leaves evenly. A request passes once
-- everything before it has left, and is refused if that is more than longest, the
-- scaled units that leave within the longest delay. cost and capacity are scaled;
-- see bucket.lua for the rest, and token_bucket.lua for the reply: a retry below
-- zero says that the request passes, after that many microseconds.
local function leaky_bucket(value, now, num, den, capacity, cost, longest)
  local ceil, used = math.ceil, 0
  used, now = bucket_used(2, value, now, num, den, capacity)
  local retry, state, ttl = 0, nil, nil
  if cost > 0 then
    if used > longest then
      retry = ceil((used - longest) / num)
    else
      retry = -ceil(used / num)
      used = used + cost
      state = struct.pack('<Bddd', 2, now, used, den)
    end
  end
  local remaining, reset = 0, ceil(used / num)
  if used <= longest then
    local free = longest - used
    remaining = (free - free % den) / den + 1
  end
  if state then ttl = ceil(reset / 1000) end
  return retry, remaining, reset, state, ttl
end
