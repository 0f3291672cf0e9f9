-- token_bucket(value, now, num, den, capacity, cost)
--
-- Decides one token bucket. Every microsecond gives back num scaled units, a
-- unit costs den, cost and capacity are scaled. All are integers below 2^53,
-- num at least 1, den at least 1 and below 2^45.
--
-- The state says how much was used, not what is left, so that a changed limit
-- holds at once: at time t (microseconds), `used` scaled units of den each were
-- in use. value is its packed form, "<Bddd" of 1, t, used, den; whatever this
-- version cannot read counts as never seen.
--
-- Reply, in this order:
--   retry      0 if the cost fits; else the microseconds until it would
--   remaining  whole units left
--   reset      microseconds until the bucket equals one never seen
--   state      what to store if the request passes; nil for "write nothing"
--   ttl        milliseconds to store it for
--
-- Exactness. Doubles hold integers up to 2^53. A product beyond that rounds,
-- but never down across 2^53, so comparing it with a smaller number is still
-- right. Quotients come from the exact remainder of math.fmod: a plain a/b can
-- round up to the next integer, and the % operator divides like that.
local function token_bucket(value, now, num, den, capacity, cost)
  local fmod = math.fmod
  local used = 0
  if value and #value == 25 then
    local tag, t, was, unit = struct.unpack('<Bddd', value)
    if tag == 1 then
      used = was
      if unit ~= den then
        -- used = ceil(used * den / unit) by long multiplication in base 128:
        -- every step stays below 2^53 because unit and den are below 2^45.
        local rest = fmod(used, unit)
        local whole = (used - rest) / unit * den
        if whole < capacity then
          local quotient, remainder = 0, 0
          local place = 4398046511104 -- 128^6
          local left = den
          while place >= 1 do
            local below = fmod(left, place)
            local x = remainder * 128 + (left - below) / place * rest
            remainder = fmod(x, unit)
            quotient = quotient * 128 + (x - remainder) / unit
            left = below
            place = place / 128
          end
          used = whole + quotient
          if remainder > 0 then used = used + 1 end
        else
          used = capacity
        end
      end
      if used > capacity then used = capacity end
      if t > now then now = t end -- time never moves back
      local back = (now - t) * num
      if back >= used then used = 0 else used = used - back end
    end
  end

  local retry, state, ttl = 0, nil, nil
  local over = used - (capacity - cost)
  if over > 0 then
    local rest = fmod(over, num)
    retry = (over - rest) / num
    if rest > 0 then retry = retry + 1 end
  else
    used = used + cost
  end

  local free = capacity - used
  local rest = fmod(used, num)
  local reset = (used - rest) / num
  if rest > 0 then reset = reset + 1 end
  if over <= 0 and cost > 0 then
    rest = fmod(reset, 1000)
    ttl = (reset - rest) / 1000
    if rest > 0 then ttl = ttl + 1 end
    state = struct.pack('<Bddd', 1, now, used, den)
  end
  return retry, (free - fmod(free, den)) / den, reset, state, ttl
end
