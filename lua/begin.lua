-- What every script begins with: the time, and short names.
--
-- ARGV[1] is the time in microseconds; empty (always, except in tests) means the
-- server's own clock.
local call, try, pack, unpack, byte = redis.call, redis.pcall, struct.pack, struct.unpack, string.byte
local ceil = math.ceil
local now = ARGV[1]
if now == '' then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
else
  now = tonumber(now)
end
