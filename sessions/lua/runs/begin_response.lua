-- Begins a response once for each idempotency key: messages, run, first log entry, session events, key, publishes.
-- KEYS m msg log r e i q runs tree ids share
-- ARGV 1 pub 2 live 3 uid 4 rid 5 body_hash 6 on_busy 7 owner 8 lease_ms 9 key_ms 10 parent ('' = root)
--      11 `head` (parent is a guess at the session's head) or `given` 12 user message id or '' 13 its body
--      14 its JSON in events 15 assistant message id 16 its body 17 its JSON in events 18 response.created
--      19 max_queued 20 log_entries 21 log_ms 22 SHA-1 of the body that the assistant message has, '' = it is new
--      23 most messages of a session 24 most bytes of them (0 = any) 25.. run field pairs
-- ok|replayed rid fence wait offset epoch now cancel title_empty lease_until
-- key_reused rid | busy rid | queue_full rid | locked reason | moved head | changed | quota messages/bytes
-- parent_not_found | not_found
local m = redis.call('HMGET', KEYS[1], 'uid', 'locked', 'active_response_id', 'epoch', 'head', 'title', 'offset',
  'message_count', 'bytes')
if not m[1] or m[1] ~= ARGV[3] then return {'not_found'} end
local title_empty = m[6] == '' and 1 or 0

local early = false
local known = redis.call('GET', KEYS[6])
if known == 'cancelled' then
  early = true
elseif known then
  local rid, hash = string.match(known, '^(%S+) (%S*)$')
  if hash ~= ARGV[5] then return {'key_reused', rid} end
  local word = rid == ARGV[4] and 'ok' or 'replayed' -- our own id: the first reply was lost
  local run = string.sub(KEYS[4], 1, -string.len(ARGV[4]) - 1) .. rid
  local r = redis.call('HMGET', run, 'fence', 'cancel', 'lease_until')
  local wait = 0
  for place, waiting in ipairs(redis.call('LRANGE', KEYS[7], 0, -1)) do
    if waiting == rid then wait = place end
  end
  return {word, rid, tonumber(r[1] or 0), wait, tonumber(m[7]), m[4], now_ms(), tonumber(r[2] or 0), title_empty,
    tonumber(r[3] or 0)}
end

if m[2] ~= '' then return {'locked', m[2]} end
local given = ARGV[11] == 'given'
if given and ARGV[10] ~= '' and redis.call('HEXISTS', KEYS[2], ARGV[10]) == 0 then return {'parent_not_found'} end
local num_new = (ARGV[12] ~= '' and 1 or 0) + (ARGV[22] == '' and 1 or 0)
if ARGV[23] ~= '0' and m[8] + num_new > tonumber(ARGV[23]) then return {'quota', 'messages'} end
if ARGV[24] ~= '0' and (m[9] or 0) + size_of(ARGV[13]) > tonumber(ARGV[24]) then return {'quota', 'bytes'} end
local busy = m[3] ~= ''
if busy then
  if ARGV[6] ~= 'queue' then return {'busy', m[3]} end
  if redis.call('LLEN', KEYS[7]) >= tonumber(ARGV[19]) then return {'queue_full', m[3]} end
end
if ARGV[22] ~= '' and redis.sha1hex(redis.call('HGET', KEYS[2], ARGV[15]) or '') ~= ARGV[22] then return {'changed'} end
if not given and m[5] ~= ARGV[10] then return {'moved', m[5]} end

local now = now_ms()
local lease_until = now + ARGV[8]
local wait = 0
if busy then
  wait = redis.call('RPUSH', KEYS[7], ARGV[4])
else
  redis.call('HSET', KEYS[1], 'active_response_id', ARGV[4])
end
redis.call('HSET', KEYS[4], 'uid', ARGV[3], 'status', 'queued', 'fence', 1, 'owner', ARGV[7], 'sequence_number', 1,
  'lease_until', lease_until, 'cancel', 0, 'message_id', ARGV[15], 'created_at', now, 'num_tokens', 0,
  unpack(ARGV, 25))
if early then
  redis.call('HSET', KEYS[4], 'cancel', 1, 'cancel_by', 'user', 'cancel_reason', 'client_cancelled', 'cancel_at', now)
end

local offset = 0
local lines = {}
local function put(id, parent, body, json)
  local verb = 'updated'
  if put_message(KEYS[1], KEYS[2], id, body) then
    verb = 'created'
    redis.call('HINCRBY', KEYS[1], 'message_count', 1)
    redis.call('RPUSH', KEYS[9], id .. ' ' .. parent)
  end
  local event = '{"type":"message.' .. verb .. '","message":' .. json .. '}'
  offset = log_event(KEYS[1], KEYS[3], event, ARGV[20], ARGV[21])
  table.insert(lines, event)
end
local parent = ARGV[10]
if ARGV[12] ~= '' then
  put(ARGV[12], parent, ARGV[13], ARGV[14])
  parent = ARGV[12]
end
put(ARGV[15], parent, ARGV[16], ARGV[17])
redis.call('HSET', KEYS[1], 'head', ARGV[15], 'updated_at', now)
redis.call('HSET', KEYS[4], 'parent_id', parent)
redis.call('ZADD', KEYS[8], '+inf', ARGV[4])
hold({KEYS[1], KEYS[2], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]})
redis.call('XADD', KEYS[5], '1-0', 'd', ARGV[18])
redis.call('SET', KEYS[6], ARGV[4] .. ' ' .. ARGV[5], 'PX', ARGV[9])
publish_session(m[4], offset, table.concat(lines, '\n'))
publish_response(ARGV[4], 1, 1, 1, ARGV[18])
return {'ok', ARGV[4], 1, wait, offset, m[4], now, early and 1 or 0, title_empty, lease_until}
