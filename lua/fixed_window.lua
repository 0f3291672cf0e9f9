-- fixed_window(value, now, window, count, cost)
--
-- Decides one fixed window: windows of `window` microseconds follow each other
-- from the epoch on, and each has count units.
--
-- The state, "<Bdd" of 3, t, used: `used` units were used in the window of t, when
-- something was taken last. With a changed window they count if t lies in the new
-- one. Time never moves back. The reply is token_bucket.lua's.
local function fixed_window(value, now, window, count, cost)
  local t, used = 0, 0
  if value and #value == 17 then
    local by, at, was = struct.unpack('<Bdd', value)
    if by == 3 then t, used = at, was end
  end
  if t > now then now = t end
  local start = now - now % window
  if t < start then used = 0 end
  local left = start + window - now
  local retry, state, ttl = 0, nil, nil
  if cost > 0 then
    if cost > count - used then
      retry = left
    else
      used = used + cost
      state, ttl = struct.pack('<Bdd', 3, now, used), math.ceil(left / 1000)
    end
  end
  local reset = 0
  if used > 0 then reset = left end
  return retry, math.max(0, count - used), reset, state, ttl
end
