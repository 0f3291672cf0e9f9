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
-- right. Quotients of such integers never round to a whole number that they are
-- not: a/b is at least 1/b away from it, and that is more than half a place of
-- the last digit as long as a is below 2^53. So floor, ceil and % are exact.
local function token_bucket(value, now, num, den, capacity, cost)
  local ceil = math.ceil
  local used = 0
  if value and #value == 25 then
    local tag, t, was, unit = struct.unpack('<Bddd', value)
    if tag == 1 then
      used = was
      if unit ~= den then
        -- used = ceil(used * den / unit), by long multiplication in base 128:
        -- every step stays below 2^53 because unit and den are below 2^45.
        local rest = used % unit
        local whole = (used - rest) / unit * den
        if whole < capacity then
          local quotient, remainder, left = 0, 0, den
          local place = 4398046511104 -- 128^6
          while place >= 1 do
            local below = left % place
            local x = remainder * 128 + (left - below) / place * rest
            remainder = x % unit
            quotient = quotient * 128 + (x - remainder) / unit
            left, place = below, place / 128
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
