-- Gives back what take.lua took from buckets of one slot for a request that
-- another slot refused.
--
-- KEYS     one key per bucket, all in one hash slot
-- ARGV[1]  the time in microseconds, as take.lua's ARGV[1]
-- ARGV[2]  when it was taken: the time that take.lua replied
-- ARGV[3]  per bucket 33 bytes, exactly as take.lua's ARGV[2]
--
-- Never more is given back than is certainly still there. Nobody having taken
-- anything since (the stored time is still that of the taking), that is the
-- whole cost. Otherwise part of it may have drained by itself while the bucket,
-- had the cost not been taken, would have been idle; that part is at most what
-- drained between the two takings. Nothing is given back to a bucket that is
-- gone, or whose limit was changed in between.
--
-- Reply: per bucket "<dd": whole units remaining and the microseconds until it
-- equals one never seen, joined to one string.
local now = ARGV[1]
if now == '' then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
else
  now = tonumber(now)
end
local taken = tonumber(ARGV[2])
local reply = {}

for i = 1, #KEYS do
  local _, num, den, capacity, cost = struct.unpack('<Bdddd', ARGV[3], i * 33 - 32)
  local value = redis.pcall('GET', KEYS[i])
  if type(value) == 'table' then return value end
  if value and #value == 25 then
    local tag, t, used, unit = struct.unpack('<Bddd', value)
    if tag == 1 and unit == den and t >= taken then
      local drained = (t - taken) * num
      if drained < cost then
        used = math.max(0, used - (cost - drained))
        local left = t + math.ceil(used / num) - now
        if left <= 0 then
          redis.call('DEL', KEYS[i])
          value = false
        else
          value = struct.pack('<Bddd', 1, t, used, den)
          redis.call('SET', KEYS[i], value, 'PX', math.ceil(left / 1000))
        end
      end
    end
  end
  local _, remaining, reset = token_bucket(value, now, num, den, capacity, 0)
  reply[i] = struct.pack('<dd', remaining, reset)
end
return table.concat(reply)
