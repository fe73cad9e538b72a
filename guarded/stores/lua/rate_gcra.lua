-- The generic cell rate algorithm (ITU-T I.371, virtual scheduling): on average a quota, with bursts; or paced.
--
-- KEYS  1 hash: arrival times, clock   2 string: end of a pause
-- ARGV  1 take, confirm, correct or look   2 patience in us, -1 for any   3 mark   4 +1 to charge, -1 to give back
--       then of each quota seven numbers: what a microsecond is divided into; whole microseconds and the rest of: what
--       the cost moves the arrival time by, how far ahead that may be for the cost, and what one unit moves it by
-- Reply take, confirm: {1, mark} admitted, {2, mark, us} booked, {0, us} refused; look: {us, {{us, parts} ahead, of each quota}};
--       correct: nothing
--
-- Nothing is rounded: a time is whole microseconds of the server's clock, held back so that they never decrease, and a
-- rest counted in `parts`. `q<i> r<i>` is the arrival time by what was admitted, `bq<i> br<i>` with the bookings too; `kq<i> kr<i>`
-- goes on by all that was admitted, and a mark is where in it an admission ends.

local function round(number) return string.format('%.0f', number) end

local stored = redis.call('HGETALL', KEYS[1])
local state = {}
for at = 1, #stored, 2 do state[stored[at]] = tonumber(stored[at + 1]) end

local time = redis.call('TIME')
local skew = state.skew or 0
local now = time[1] * 1000000 + time[2] + skew
if now < (state.last or 0) then
  skew = skew + state.last - now
  now = state.last
end
local pause = tonumber(redis.call('GET', KEYS[2]) or 0) + skew

local function later(a, b)
  if a[1] ~= b[1] then return a[1] > b[1] and a or b end
  return a[2] >= b[2] and a or b
end

local quotas = {}
for at = 5, #ARGV, 7 do
  local index = #quotas + 1
  local function pair(from) return {tonumber(ARGV[at + from]), tonumber(ARGV[at + from + 1])} end
  quotas[index] = {
    parts = tonumber(ARGV[at]), step = pair(1), credit = pair(3),
    real = later({state['q' .. index] or 0, state['r' .. index] or 0}, {now, 0}),
    planned = later({state['bq' .. index] or 0, state['br' .. index] or 0}, {now, 0}),
    counted = {state['kq' .. index] or now, state['kr' .. index] or 0},
  }
end

local function plus(a, b, parts)
  local rest = a[2] + b[2]
  if rest >= parts then return {a[1] + b[1] + 1, rest - parts} end
  return {a[1] + b[1], rest}
end

local function minus(a, b, parts)
  local rest = a[2] - b[2]
  if rest < 0 then return {a[1] - b[1] - 1, rest + parts} end
  return {a[1] - b[1], rest}
end

local function save()
  local fields, furthest = {'last', now, 'skew', skew}, now
  for index, quota in ipairs(quotas) do
    for name, time_of in pairs({[''] = quota.real, b = quota.planned, k = quota.counted}) do
      for part, letter in ipairs({'q', 'r'}) do
        fields[#fields + 1] = name .. letter .. index
        fields[#fields + 1] = time_of[part]
      end
    end
    furthest = math.max(furthest, quota.real[1], quota.planned[1])
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('PEXPIRE', KEYS[1], math.ceil((furthest - now) / 1000) + 1)
end

local function due(which)
  local at = math.max(now, pause)
  for _, quota in ipairs(quotas) do
    local early = minus(quota[which], quota.credit, quota.parts)
    at = math.max(at, early[2] > 0 and early[1] + 1 or early[1])
  end
  return at
end

local function mark_of(kind, at)
  local words = {kind .. round(at)}
  for _, quota in ipairs(quotas) do words[#words + 1] = round(quota.counted[1]) .. ':' .. round(quota.counted[2]) end
  return table.concat(words, ' ')
end

local function book(which, at)
  for _, quota in ipairs(quotas) do
    quota[which] = plus(later(quota[which], {at, 0}), quota.step, quota.parts)
    if which == 'real' then quota.counted = plus(quota.counted, quota.step, quota.parts) end
  end
end

local function take()
  local at = due('planned')
  local patience = tonumber(ARGV[2])
  if at > now and patience >= 0 and at - now > patience then return {0, at - now} end
  book('planned', at)
  if at <= now then book('real', at) end
  save()
  if at <= now then return {1, mark_of('a', now)} end
  return {2, mark_of('b', at), at - now}
end

local function confirm()
  local planned = tonumber(string.match(ARGV[3], '^b(%d+)'))
  local at = math.max(planned, due('real'))
  if at > now then return {2, ARGV[3], at - now} end
  book('real', now)
  for _, quota in ipairs(quotas) do quota.planned = later(quota.planned, quota.real) end
  save()
  return {1, mark_of('a', now)}
end

-- What has drained is gone: giving it back would allow a burst on top of the burst. It drains in order, where what is
-- given back in the middle passes for drained.
local function give_back(quota, mark)
  local drained = minus(quota.counted, minus(quota.real, {now, 0}, quota.parts), quota.parts)
  local left = minus(mark, drained, quota.parts)
  if left[1] < 0 then return end
  local work = later(quota.step, left) == quota.step and left or quota.step
  quota.real = minus(quota.real, work, quota.parts)
  quota.planned = later(minus(quota.planned, work, quota.parts), quota.real)
  if mark[1] == quota.counted[1] and mark[2] == quota.counted[2] then
    quota.counted = minus(quota.counted, work, quota.parts)
  end
end

local function correct()
  local booking, marks = string.sub(ARGV[3], 1, 1) == 'b', {}
  for whole, rest in string.gmatch(ARGV[3], ' (%d+):(%d+)') do
    marks[#marks + 1] = {tonumber(whole), tonumber(rest)}
  end
  if ARGV[4] == '1' then
    book('planned', now)
    if not booking then book('real', now) end
  else
    for index, quota in ipairs(quotas) do
      if booking then
        quota.planned = later(minus(quota.planned, quota.step, quota.parts), quota.real)
      else
        give_back(quota, marks[index] or quota.counted)
      end
    end
  end
  save()
end

if ARGV[1] == 'take' then return take() end
if ARGV[1] == 'confirm' then return confirm() end
if ARGV[1] == 'correct' then return correct() end
local ahead = {}
for index, quota in ipairs(quotas) do
  local part = minus(quota.planned, {now, 0}, quota.parts)
  ahead[index] = now < pause and {-1, 0} or part
end
return {due('planned') - now, ahead}
