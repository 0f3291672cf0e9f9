-- Gives back what take.lua took from buckets of one slot for a request that
-- another slot refused.
--
-- KEYS     one key per bucket, all in one hash slot
-- ARGV[1]  the time, see begin.lua
-- ARGV[2]  when it was taken: the time that take.lua replied
-- ARGV[3]  per bucket a byte and some numbers, exactly as take.lua's ARGV[2]
--
-- Never more is given back than is certainly still there. Nothing is given back to
-- a bucket that is gone, or whose unit, window or algorithm was changed in between.
--
-- Reply: per bucket "<dd": whole units remaining and the microseconds until it
-- equals one never seen, joined to one string.
local taken = tonumber(ARGV[2])

-- keep stores a state for the microseconds that are left of it.
local function keep(key, state, left)
  if left > 0 then
    call('PSETEX', key, ceil(left / 1000), state)
    return state
  end
  call('DEL', key)
  return false
end

-- A token or leaky bucket. Nobody having taken anything since (the stored time is
-- still that of the taking), the whole cost is there. Otherwise part of it may have
-- drained by itself while the bucket, had the cost not been taken, would have been
-- idle; that part is at most what drained between the two takings.
local function bucket(key, value, tag, num, den, cost)
  if not value or #value ~= 25 then return value end
  local by, t, used, unit = unpack('<Bddd', value)
  local drained = (t - taken) * num
  if by ~= tag or unit ~= den or t < taken or drained >= cost then return value end
  used = math.max(0, used - (cost - drained))
  return keep(key, pack('<Bddd', tag, t, used, den), t + math.ceil(used / num) - now)
end

-- A fixed window: the cost is there as long as the window is the same.
local function fixed(key, value, window, cost)
  if not value or #value ~= 17 then return value end
  local by, t, used = unpack('<Bdd', value)
  if by ~= 3 or t < taken or t - t % window > taken then return value end
  used = math.max(0, used - cost)
  return keep(key, pack('<Bdd', 3, t, used), used > 0 and t - t % window + window - now or 0)
end

-- A sliding window: the cost is in the window of its time, which may be the one
-- before by now.
local function sliding(key, value, window, cost)
  if not value or #value ~= 33 then return value end
  local by, t, was, prev, used = unpack('<Bdddd', value)
  if by ~= 4 or was ~= window or t < taken then return value end
  local start = t - t % window
  if start <= taken then
    used = math.max(0, used - cost)
  elseif start - window <= taken then
    prev = math.max(0, prev - cost)
  else
    return value
  end
  local left = 0
  if used > 0 then left = start + 2 * window - now elseif prev > 0 then left = start + window - now end
  return keep(key, pack('<Bdddd', 4, t, window, prev, used), left)
end

-- A sliding log: the request is found by its time, and the totals from it on are
-- corrected. What stood in for it goes if nothing of it is left, and the log lives
-- as long as its last request counts.
local function log(key, window, cost)
  local list = redis.pcall('LRANGE', key, 0, -1)
  if list.err then return end
  local before = 0
  for i, element in ipairs(list) do
    local t, total = unpack('<dd', element)
    if t == taken and i > 1 and total - before >= cost then
      for k = i, #list do
        local at, sum = unpack('<dd', list[k])
        call('LSET', key, k - 1, pack('<dd', at, sum - cost))
      end
      if total - before == cost then call('LREM', key, 1, pack('<dd', t, total - cost)) end
      local left = unpack('<d', call('LINDEX', key, -1)) + window - now
      if left > 0 then call('PEXPIRE', key, math.ceil(left / 1000)) else call('DEL', key) end
      return
    end
    before = total
  end
end

local reply, position = {}, 1
for i = 1, #KEYS do
  local key, what = KEYS[i], string.byte(ARGV[3], position) % 128
  local remaining, reset, _
  local value
  if what ~= 5 then
    value = redis.pcall('GET', key)
    if type(value) == 'table' then return value end
  end
  if what < 3 then
    local num, den, capacity, cost, next = unpack('<dddd', ARGV[3], position + 1)
    value = bucket(key, value, what, num, den, cost)
    if what == 1 then
      _, remaining, reset = token_bucket(value, now, num, den, capacity, 0)
    else
      local longest
      longest, next = unpack('<d', ARGV[3], next)
      _, remaining, reset = leaky_bucket(value, now, num, den, capacity, 0, longest)
    end
    position = next
  else
    local window, count, cost, next = unpack('<ddd', ARGV[3], position + 1)
    if what == 3 then
      _, remaining, reset = fixed_window(fixed(key, value, window, cost), now, window, count, 0)
    elseif what == 4 then
      _, remaining, reset = sliding_window(sliding(key, value, window, cost), now, window, count, 0)
    else
      log(key, window, cost)
      _, remaining, reset = sliding_log(key, now, window, count, 0)
      if type(_) == 'table' then return _ end
    end
    position = next
  end
  reply[i] = pack('<dd', remaining, reset)
end
return table.concat(reply)
