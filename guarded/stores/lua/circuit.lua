-- A circuit: state, generation, windows, trials and the calls that may be slow; the machine of `_circuit.core`.
--
-- KEYS  1 hash: state and totals   2 zset: trials by start   3 zset: running calls by start   4 set: calls overdue
--       5 string: ring of the latest calls, a byte each; or hash: buckets of time, "calls,failed,slow" by number
-- ARGV  1 admit, settle, answered, move or look
--       rules: 2 failures, 0 for none   3 failure rate, -1 for none   4 window in calls, 0 for none   5 window in us, 0
--       for none   6 calls below which a rate means nothing   7 us from which a call is slow, 0 for none   8 slow rate,
--       -1 for none   9 us of the first opening   10 us of the longest   11 trials   12 us for which a trial keeps its
--       place
--       settle, answered: 13 generation   14 serial   settle: 15 success, failure or neutral   16 1 if it was slow
--       move: 13 state, empty to close and forget
-- Reply {what the step gives, state, generation, changes}, a change being {state, before, reason, failures, failure rate, slow rate,
--       us it will be open}, numbers that do not apply -1; the step gives
--       admit: {1, generation, serial}, or {0, us in this state, us until a call is let through, trials out, and reason,
--       failures and rates of the opening};   settle: counted, late or ignored;   answered: 1 when it is counted
--       look: {us in this state or -1, failures, calls, failure rate, slow rate, trials out, us until let through or -1,
--       trials that succeeded, failures of the latest opening}
--
-- Times are microseconds of the server's clock. Each change begins a new generation and empties the rest.

local BUCKETS, GROWTH, FORGET = 20, 2, 30 * 24 * 3600 * 1000 -- an idle circuit is kept for a month

local key, trials, running, overdue, window = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local function number(at) return tonumber(ARGV[at]) end
local rules = {
  failures = number(2), failure_rate = number(3), calls = number(4), us = number(5), least = number(6),
  slow = number(7), slow_rate = number(8), reset = number(9), longest = number(10), half_open = number(11),
  trial = number(12),
}

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stored = redis.call('HGETALL', key)
local state = {state = 'closed', gen = now, changed = now, open = rules.reset, row = 0, serial = 0, successes = 0,
  calls = 0, failed = 0, slow = 0, at = 0, reason = 'by hand', failures = 0, failure_rate = -1, slow_rate = -1, moved = 0}
local before = {}
for at = 1, #stored, 2 do
  local value = tonumber(stored[at + 1]) or stored[at + 1]
  state[stored[at]], before[stored[at]] = value, value
end
local changes = {}

local function text(value) return string.format('%.17g', value) end

local function save()
  local fields = {}
  for name, value in pairs(state) do
    if value ~= before[name] then
      fields[#fields + 1] = name
      fields[#fields + 1] = type(value) == 'number' and text(value) or value
    end
  end
  if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
  redis.call('PEXPIRE', key, FORGET)
end

local function watch(set, serial)
  redis.call('ZADD', set, now, serial)
  redis.call('PEXPIRE', set, FORGET)
end

local function forget()
  state.row, state.successes, state.calls, state.failed, state.slow, state.at = 0, 0, 0, 0, 0, 0
  redis.call('DEL', trials, running, overdue, window)
end

-- Totals of the window, what is too old dropped.
local function tally()
  if rules.us == 0 then return end
  state.calls, state.failed, state.slow = 0, 0, 0
  local newest = math.floor(now / math.ceil(rules.us / BUCKETS))
  local buckets = redis.call('HGETALL', window)
  for at = 1, #buckets, 2 do
    if math.abs(newest - tonumber(buckets[at])) >= BUCKETS then
      redis.call('HDEL', window, buckets[at])
    else
      local calls, failed, slow = string.match(buckets[at + 1], '(%d+),(%d+),(%d+)')
      state.calls, state.failed, state.slow = state.calls + calls, state.failed + failed, state.slow + slow
    end
  end
end

local function add_to_ring(failed, slow)
  if redis.call('STRLEN', window) < state.calls then state.calls, state.failed, state.slow, state.at = 0, 0, 0, 0 end
  if state.calls >= rules.calls then
    if state.at >= rules.calls then state.at = 0 end
    local old = tonumber(redis.call('GETRANGE', window, state.at, state.at)) or 0
    state.failed, state.slow = state.failed - old % 2, state.slow - math.floor(old / 2)
  else
    state.calls = state.calls + 1
  end
  redis.call('SETRANGE', window, state.at, tostring((failed and 1 or 0) + (slow and 2 or 0)))
  redis.call('PEXPIRE', window, FORGET)
  state.failed, state.slow = state.failed + (failed and 1 or 0), state.slow + (slow and 1 or 0)
  state.at = (state.at + 1) % rules.calls
end

local function add_to_bucket(failed, slow)
  local bucket = string.format('%.0f', math.floor(now / math.ceil(rules.us / BUCKETS)))
  local calls, bad, late = string.match(redis.call('HGET', window, bucket) or '0,0,0', '(%d+),(%d+),(%d+)')
  local counts = {calls + 1, bad + (failed and 1 or 0), late + (slow and 1 or 0)}
  redis.call('HSET', window, bucket, string.format('%d,%d,%d', counts[1], counts[2], counts[3]))
  redis.call('PEXPIRE', window, math.ceil(rules.us / 1000) + 1)
end

local function rates()
  if rules.us == 0 and rules.calls == 0 then return 0, 0, 0 end
  local late = redis.call('SCARD', overdue)
  return state.failed / math.max(1, state.calls), (state.slow + late) / math.max(1, state.calls + late), late
end

local function failures() return rules.failure_rate >= 0 and state.failed or state.row end

local function move(target, reason)
  local previous = state.state
  if target == previous then return end
  if target == 'open' and string.sub(reason, 1, 5) == 'trial' then
    state.open = math.min(state.open * GROWTH, rules.longest)
  elseif target ~= 'open' and target ~= 'half-open' then
    state.open = rules.reset
  end
  local failure_rate, slow_rate = rates()
  local count = failures()
  if previous == 'half-open' then count = reason == 'trial failed' and 1 or 0 end
  if rules.failure_rate < 0 or previous ~= 'closed' then failure_rate = -1 end
  if rules.slow_rate < 0 or previous ~= 'closed' then slow_rate = -1 end
  changes[#changes + 1] =
    {target, previous, reason, count, text(failure_rate), text(slow_rate), target == 'open' and state.open or -1}
  if target == 'open' or target == 'isolated' then
    state.reason, state.failures, state.failure_rate, state.slow_rate = reason, count, failure_rate, slow_rate
  end
  state.state, state.gen, state.changed, state.moved = target, state.gen + 1, now, 1
  forget()
end

local function judge()
  if rules.failures > 0 and state.row >= rules.failures then move('open', 'failures') end
  if state.state == 'open' or (rules.us == 0 and rules.calls == 0) then return end
  tally()
  local failure_rate, slow_rate, late = rates()
  if state.failed + state.slow + late == 0 then return end
  if rules.failure_rate >= 0 and failure_rate >= rules.failure_rate and state.calls >= rules.least then
    move('open', 'failure_rate')
  elseif rules.slow_rate >= 0 and slow_rate >= rules.slow_rate and state.calls + late >= rules.least then
    move('open', 'slow_rate')
  end
end

local function count(failed, slow)
  failed = failed or (slow and rules.slow_rate < 0)
  state.row = failed and state.row + 1 or 0
  if rules.us > 0 then
    add_to_bucket(failed, slow)
  elseif rules.calls > 0 then
    add_to_ring(failed, slow)
  end
  judge()
end

-- Count the calls that are slow already though they have not ended.
local function notice_slow()
  for _, serial in ipairs(redis.call('ZRANGEBYSCORE', running, '-inf', now - rules.slow)) do
    if state.state ~= 'closed' then return end
    redis.call('ZREM', running, serial)
    if rules.slow_rate < 0 then
      count(true, true) -- what it ends with cannot make it better
    else
      redis.call('SADD', overdue, serial)
      redis.call('PEXPIRE', overdue, FORGET)
    end
  end
  if state.state == 'closed' and redis.call('SCARD', overdue) > 0 then judge() end
end

local function refusal()
  local age = math.max(0, now - state.changed)
  local wait = state.state == 'open' and math.max(0, state.open - age) or -1
  return {0, age, wait, redis.call('ZCARD', trials), state.reason, state.failures, text(state.failure_rate),
    text(state.slow_rate)}
end

local function watched(set)
  state.serial = state.serial + 1
  watch(set, state.serial)
  return {1, state.gen, state.serial}
end

local function admit_trial()
  redis.call('ZREMRANGEBYSCORE', trials, '-inf', now - rules.trial)
  for _, serial in ipairs(redis.call('ZRANGEBYSCORE', trials, '(' .. string.format('%.0f', now), '+inf')) do
    watch(trials, serial)
  end
  if state.successes + redis.call('ZCARD', trials) >= rules.half_open then return refusal() end
  return watched(trials)
end

local function admit()
  if state.state == 'closed' and rules.slow > 0 then notice_slow() end
  if state.state == 'open' then
    state.changed = math.min(state.changed, now)
    if now - state.changed >= state.open then move('half-open', 'time is up') end
  end
  if state.state == 'half-open' then return admit_trial() end
  if state.state == 'closed' and rules.slow > 0 then return watched(running) end
  if state.state == 'closed' or state.state == 'disabled' then return {1, state.gen, 0} end
  return refusal()
end

-- Whether the call's slowness has been counted already, as the failure it is.
local function unwatch(serial)
  return redis.call('ZREM', running, serial) == 0 and redis.call('SREM', overdue, serial) == 0
end

local function settle()
  local current, serial, outcome, slow = number(13) == state.gen, number(14), ARGV[15], ARGV[16] == '1'
  if current and state.state == 'half-open' then
    current = redis.call('ZREM', trials, serial) == 1
  elseif current and state.state == 'closed' and serial > 0 and unwatch(serial) then
    return 'ignored'
  end
  if outcome == 'neutral' then return 'ignored' end
  if not current then return 'late' end
  slow = slow and rules.slow > 0
  if state.state == 'half-open' then
    if outcome == 'failure' or slow then
      move('open', outcome == 'failure' and 'trial failed' or 'trial slow')
    else
      state.successes = state.successes + 1
      if state.successes >= rules.half_open then move('closed', 'recovered') end
    end
  elseif state.state == 'closed' then
    count(outcome == 'failure', slow)
  else
    return 'ignored'
  end
  return 'counted'
end

local function answered()
  if number(13) ~= state.gen or state.state ~= 'closed' then return 0 end
  return unwatch(number(14)) and 1 or 0
end

local function by_hand()
  if ARGV[13] ~= '' then
    move(ARGV[13], 'by hand')
  elseif state.state == 'closed' then
    state.gen = state.gen + 1
    forget()
  else
    move('closed', 'by hand')
  end
  return 'counted'
end

local function look()
  tally()
  local failure_rate, slow_rate = rates()
  local age = math.max(0, now - state.changed)
  local wait = state.state == 'open' and math.max(0, state.open - age) or -1
  return {state.moved == 1 and age or -1, failures(), state.calls, text(failure_rate), text(slow_rate),
    redis.call('ZCARD', trials), wait, state.successes, state.failures}
end

local steps = {admit = admit, settle = settle, answered = answered, move = by_hand, look = look}
local result = steps[ARGV[1]]()
if ARGV[1] ~= 'look' then save() end
return {result, state.state, state.gen, changes}
