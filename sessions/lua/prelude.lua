-- The functions that scripts share: each script is sent with those that it calls. A script is atomic and may be sent
-- twice: when a reply is lost, the repeat must find its own traces and answer as the first try did.
-- What can fail comes before the first write: Redis takes no write back, and a repeat would meet half of a script.
-- A reply is an array whose first element is a word. Lua cuts floats in replies and prints 14 digits with `..`.

-- What the caller gives, by name. Each script begins with `read_args`, which names its values and its lists; a caller
-- gives exactly these names (sessions/connection/scripts.py). The names are not sent: values come in this order, each
-- list after its length, and all unchanged, since bodies are binary and numbers must stay the same text. Sending names
-- too costs Redis 1.5 µs more of append's 14 µs; a codec would need a dependency.
local args = {}
local function read_args(values, lists)
  local given, place = ARGV, #values
  for i = 1, place do args[values[i]] = given[i] end
  for _, name in ipairs(lists or {}) do
    local list, length = {}, tonumber(given[place + 1])
    for i = 1, length do list[i] = given[place + 1 + i] end
    args[name] = list
    place = place + 1 + length
  end
end

-- Redis' clock in ms: workers' clocks are never compared with each other.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Another one after each start and each promotion, when the last writes may be missing.
local function server_id()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  return string.sub(run, 1, 12) .. string.sub(history, 1, 12)
end

local function is_live(status)
  return status == 'queued' or status == 'in_progress'
end

-- The refusal to write to a run that has ended.
local function ended(r)
  local status, reason, sequence_number, engine, text_length, fence = unpack(redis.call('HMGET', r, 'status', 'reason',
    'sequence_number', 'engine', 'text_length', 'fence'))
  return {'ended', status, reason, tonumber(sequence_number), engine, tonumber(text_length), tonumber(fence)}
end

-- Numbers and stores one session event; the caller publishes.
local function log_event(m, log, json, max_entries, life_ms)
  local offset = redis.call('HINCRBY', m, 'offset', 1)
  redis.call('XADD', log, 'MAXLEN', '~', max_entries, offset .. '-0', 'd', json)
  redis.call('PEXPIRE', log, life_ms)
  return offset
end

-- A script that publishes takes `channel`, the session's.
local function publish(text)
  redis.call('PUBLISH', args.channel, text)
end

local function publish_session(epoch, offset, lines)
  publish('s ' .. epoch .. ' ' .. offset .. '\n' .. lines)
end

local function response_payload(rid, fence, first, last, lines)
  return 'r ' .. rid .. ' ' .. fence .. ' ' .. first .. ' ' .. last .. '\n' .. lines
end

local function publish_response(rid, fence, first, last, lines)
  publish(response_payload(rid, fence, first, last, lines))
end

-- Whether a command failed because this server takes no writes now, whatever they are: it has taken none of this script
-- either. The caller's connection must see such an error (sessions/connection/link.py).
local function is_outage(message)
  for _, word in ipairs({'READONLY', 'OOM command', 'MISCONF', 'NOREPLICAS', 'MASTERDOWN'}) do
    if string.find(message, word, 1, true) then return true end
  end
  return false
end

-- Entries that their run does not count are of a script that failed half-way. Nobody has seen them, and a stream
-- takes no number twice: without them the run can go on and end.
local function drop_uncounted(log, last)
  local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
  if not newest or tonumber(string.match(newest[1], '^%d+')) <= last then return end
  local counted = redis.call('XRANGE', log, '-', last .. '-0')
  redis.call('UNLINK', log)
  for _, entry in ipairs(counted) do redis.call('XADD', log, entry[1], unpack(entry[2])) end
end

-- The newest calls that have changed a session, 8 characters each: a repeat finds its own although others came between.
local function is_among(calls, call_id)
  return string.find(calls or '', call_id, 1, true) ~= nil
end

local function with_call(calls, call_id)
  return string.sub(call_id .. ' ' .. (calls or ''), 1, 71)
end

-- A session's keys have one life: none while an answer is written, or when sessions stay for ever. `m` goes first, so
-- that a reader who still finds it finds the rest.
local function hold(keys)
  if redis.call('PERSIST', keys[1]) == 1 then
    for _, key in ipairs(keys) do redis.call('PERSIST', key) end
  end
end

local function let_go(idle_ms, keys)
  idle_ms = redis.call('HGET', keys[1], 'life_ms') or idle_ms -- of this session alone
  if idle_ms == '0' then return hold(keys) end
  for place, key in ipairs(keys) do redis.call('PEXPIRE', key, idle_ms + (place > 1 and 1000 or 0)) end
end

-- A count of tokens grows to 2^53 and stays there: HINCRBY would fail at 2^63, and fails for ever on what is beyond.
local function grown(count, more)
  return string.format('%.0f', math.min((tonumber(count) or 0) + tonumber(more), 9007199254740992))
end

-- How long a message's body is when it is not compressed: `z`, four bytes of length, zlib.
local function size_of(body)
  if not body then return 0 end
  if string.sub(body, 1, 1) ~= 'z' or #body < 5 then return #body end
  return struct.unpack('>I4', body, 2)
end

-- Stores a message and counts its bytes in the session; true if it is new.
local function put_message(m, msg, id, body)
  redis.call('HINCRBY', m, 'bytes', size_of(body) - size_of(redis.call('HGET', msg, id)))
  return redis.call('HSET', msg, id, body) == 1
end

-- The event of a queue that has just been changed.
local function new_queue_event(m)
  local revision = redis.call('HINCRBY', m, 'queue_revision', 1)
  local shown, paused = unpack(redis.call('HMGET', m, 'queue_shown', 'queue_paused'))
  return string.format('{"type":"queue.updated","queue":{"revision":%.0f,"paused":%s,"items":%s}}', revision,
    paused == '1' and 'true' or 'false', shown)
end

-- Whether something is to begin by itself, unless the queue is paused.
local function has_queue(m)
  local items, next_round = unpack(redis.call('HMGET', m, 'queue', 'next_round'))
  return next_round or (items and items ~= '[]')
end
