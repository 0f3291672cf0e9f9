-- bucket_used(tag, value, now, num, den, capacity)
--
-- What a token bucket (tag 1) or leaky bucket (tag 2) holds. Every microsecond
-- takes num scaled units out of it, a unit is den. All are integers below 2^53,
-- num at least 1, den at least 1 and below 2^45.
--
-- The state says how much was used, not what is left, so that a changed limit
-- holds at once: at time t (microseconds), `used` scaled units of den each were
-- in use. value is its packed form, "<Bddd" of tag, t, used, den; whatever this
-- version cannot read counts as never seen.
--
-- Reply: used, now. Time never moves back: now is at least t.
--
-- Exactness. Doubles hold integers up to 2^53. A product beyond that rounds,
-- but never down across 2^53, so comparing it with a smaller number is still
-- right. Quotients of such integers never round to a whole number that they are
-- not: a/b is at least 1/b away from it, and that is more than half a place of
-- the last digit as long as a is below 2^53. So floor, ceil and % are exact.
local function bucket_used(tag, value, now, num, den, capacity)
  if not value or #value ~= 25 then return 0, now end
  local by, t, used, unit = struct.unpack('<Bddd', value)
  if by ~= tag then return 0, now end
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
  if t > now then now = t end
  local back = (now - t) * num
  if back >= used then return 0, now end
  return used - back, now
end
