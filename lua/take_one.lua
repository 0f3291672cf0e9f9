-- The common cases of take.lua come first, in the shortest way: requests of one token
-- bucket, before anything is even defined that they do not need. First, one request.
if not ARGV[3] and #KEYS == 1 and byte(ARGV[2]) % 128 == 1 then
  local value = try('GET', KEYS[1])
  if type(value) ~= 'table' then
    local _, num, den, capacity, cost = unpack('<Bdddd', ARGV[2])
    local used, at = bucket_used(1, value, now, num, den, capacity)
    local retry, remaining, reset, after = token_bucket_step(used, num, den, capacity, cost)
    if after ~= used then
      call('PSETEX', KEYS[1], ceil(reset / 1000), pack('<Bddd', 1, at, after, den))
    end
    return pack('<dddd', now, retry, remaining, reset)
  end
end

-- take_one decides a request that has one token bucket, whose numbers stand at a
-- position, up to a number of times, as long as anything is taken. It replies its part
-- of the reply, or nothing if that needs more than this.
local function take_one(key, position, times)
  local value = try('GET', key)
  if type(value) == 'table' then return end
  local _, num, den, capacity, cost = unpack('<Bdddd', ARGV[2], position)
  local before, at = bucket_used(1, value, now, num, den, capacity)
  local retry, remaining, reset, used = token_bucket_step(before, num, den, capacity, cost)
  local n, last, reply = 1, before, nil
  if times > 1 and used ~= last then
    reply = {'', pack('<ddd', retry, remaining, reset)}
    repeat
      last = used
      retry, remaining, reset, used = token_bucket_step(last, num, den, capacity, cost)
      n = n + 1
      reply[n + 1] = pack('<ddd', retry, remaining, reset)
    until used == last or n == times
  end
  if used ~= before then
    local written = try('PSETEX', key, ceil(reset / 1000), pack('<Bddd', 1, at, used, den))
    if written.err then return pack('<HH', 0, #written.err) .. written.err end
  end
  if n == 1 then return pack('<Hddd', 1, retry, remaining, reset) end
  reply[1] = pack('<H', n)
  return table.concat(reply)
end

-- token_buckets_alone reports whether all requests that travel together have one token
-- bucket each. The first byte that is none ends the look, so all before it took 33.
local function token_buckets_alone()
  if #ARGV[3] ~= 4 * #KEYS or #ARGV[2] ~= 33 * #KEYS then return false end
  for i = 1, #KEYS do
    if byte(ARGV[2], 33 * i - 32) % 128 ~= 1 then return false end
  end
  return true
end

-- The second common case. Where it needs more than this, reply has the parts so far.
local reply
if ARGV[3] and token_buckets_alone() then
  reply = {pack('<d', now)}
  for i = 1, #KEYS do
    local _, times = unpack('<HH', ARGV[3], 4 * i - 3)
    local part = take_one(KEYS[i], 33 * i - 32, times)
    if not part then break end
    reply[i + 1] = part
  end
  if #reply > #KEYS then return table.concat(reply) end
end
