-- sliding_window_used(value, now, window, count)
--
-- What a sliding window has used: in the window of now, counted from the epoch, and
-- in the one before. The state is "<Bdddd" of 4, t, window, prev, used. Of a window
-- that was changed, what it weighed at t counts as used then. Time never moves back.
local function sliding_window_used(value, now, window, count)
  if not value or #value ~= 33 then return 0, 0, now end
  local by, t, was, prev, used = struct.unpack('<Bdddd', value)
  if by ~= 4 then return 0, 0, now end
  if was ~= window then
    used = used + math.ceil(prev * (was - t % was) / was)
    prev = 0
  end
  if t > now then now = t end
  local ahead = math.floor(now / window) - math.floor(t / window)
  if ahead == 1 then
    prev, used = used, 0
  elseif ahead > 1 then
    prev, used = 0, 0
  end
  return math.min(prev, count), math.min(used, count), now
end

-- sliding_window(value, now, window, count, cost)
--
-- Decides one sliding window: all that was used in the window of now counts, and of
-- the one before the share that the last `window` microseconds still cover, as if it
-- had been used evenly. count times window is below 2^53, and both sides of the
-- comparison are below that. The reply is token_bucket.lua's.
local function sliding_window(value, now, window, count, cost)
  local prev, used
  prev, used, now = sliding_window_used(value, now, window, count)
  local covered = window - now % window -- of the window before
  local free = count - used
  local retry, state, ttl = 0, nil, nil
  if cost > 0 then
    if cost <= free and prev * covered <= (free - cost) * window then
      used, free = used + cost, free - cost
      state = struct.pack('<Bdddd', 4, now, window, prev, used)
    elseif cost <= free then
      retry = covered - math.floor((free - cost) * window / prev)
    else
      retry = covered + math.max(0, window - math.floor((count - cost) * window / used))
    end
  end
  local reset = 0
  if used > 0 then
    reset = covered + window
  elseif prev > 0 then
    reset = covered
  end
  if state then ttl = math.ceil(reset / 1000) end
  return retry, math.max(0, math.floor((free * window - prev * covered) / window)), reset, state, ttl
end
