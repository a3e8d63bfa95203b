-- Stands in front of every script. A script is atomic and may be sent twice: when a reply is lost, the repeat must
-- find its own traces and answer as the first try did.
-- ARGV of every script that publishes: 1 PUBLISH or SPUBLISH, 2 the session's channel.
-- A reply is an array whose first element is a word. Lua cuts floats in replies and prints 14 digits with `..`.

-- Redis' clock in ms: workers' clocks are never compared with each other.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function is_live(status)
  return status == 'queued' or status == 'in_progress'
end

-- Numbers and stores one session event; the caller publishes.
local function log_event(m, log, json, max_entries, life_ms)
  local offset = redis.call('HINCRBY', m, 'offset', 1)
  redis.call('XADD', log, 'MAXLEN', '~', max_entries, offset .. '-0', 'd', json)
  redis.call('PEXPIRE', log, life_ms)
  return offset
end

local function publish_session(epoch, offset, lines)
  redis.call(ARGV[1], ARGV[2], 's ' .. epoch .. ' ' .. offset .. '\n' .. lines)
end

local function publish_response(rid, fence, first, last, lines)
  redis.call(ARGV[1], ARGV[2], 'r ' .. rid .. ' ' .. fence .. ' ' .. first .. ' ' .. last .. '\n' .. lines)
end
