-- sliding_log(key, now, window, count, cost)
--
-- Decides one sliding log, which remembers every request that passed for as long as
-- it counts: while now is below its time plus window.
--
-- The state is a list. Each element, "<dd", is the time of requests and the total of
-- everything used up to and with them, so what was used between two of them is a
-- difference, and what is looked for is found by bisection. The first element is of
-- requests that count no more. Time never moves back.
--
-- Reply: what token_bucket.lua replies, but in place of the state a function that
-- stores it. An error reply of Redis comes alone, as a table.
local function sliding_log(key, now, window, count, cost)
  local call, unpack = redis.call, struct.unpack
  local last = redis.pcall('LINDEX', key, -1)
  local foreign = type(last) == 'table'
  if foreign then -- another algorithm's state counts as never seen
    if string.sub(last.err, 1, 9) ~= 'WRONGTYPE' or call('TYPE', key).ok ~= 'string' then return last end
    last = false
  end

  -- at(i) is the time and the total of the i-th element behind the first
  local n, before, total, t = 0, 0, 0, nil
  local function at(i) return unpack('<dd', call('LINDEX', key, i)) end
  local dead = 0 -- how many of them count no more
  if last then
    n = call('LLEN', key) - 1
    t, total = unpack('<dd', last)
    if t > now then now = t end
    local _
    local low, high = 1, n + 1
    if t <= now - window then
      low = high
    elseif n > 0 and at(1) > now - window then -- as a rule the first one counts
      high = low
    end
    while low < high do
      local middle = math.floor((low + high) / 2)
      if at(middle) > now - window then high = middle else low = middle + 1 end
    end
    dead = low - 1
    _, before = at(dead)
  end

  local used = total - before
  local left = 0
  if used > 0 then left = t + window - now end
  if cost == 0 then return 0, math.max(0, count - used), left end
  if cost > count - used then
    local due = total - (count - cost) -- the total that must count no more
    local low, high = dead + 1, n
    while low < high do
      local middle = math.floor((low + high) / 2)
      local _, sum = at(middle)
      if sum >= due then high = middle else low = middle + 1 end
    end
    return at(low) + window - now, math.max(0, count - used), left
  end

  local function store()
    local pack = struct.pack
    if used == 0 then
      if last or foreign then call('DEL', key) end
      call('RPUSH', key, pack('<dd', 0, 0), pack('<dd', now, cost))
    elseif t == now then
      call('LSET', key, -1, pack('<dd', now, total + cost))
    else
      call('RPUSH', key, pack('<dd', now, total + cost))
    end
    if used > 0 and dead > 0 then call('LTRIM', key, dead, -1) end
    call('PEXPIRE', key, math.ceil(window / 1000))
  end
  return 0, count - used - cost, window, store
end
