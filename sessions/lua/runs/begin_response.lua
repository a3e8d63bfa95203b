-- Begins a response once for each idempotency key: messages, run, first log entry, session events, key, publishes.
-- KEYS m msg log r e i q runs tree ids share
-- ok|replayed rid fence wait offset epoch now cancel title_empty lease_until hidden place
-- key_reused rid | busy rid | queue_full rid | locked reason | moved head | changed | quota messages/bytes
-- parent_not_found | queue_changed | not_found
read_args({
  'channel', 'uid', 'response_id', 'body_hash', 'on_busy', 'owner', 'lease_ms', 'idempotency_ms',
  'parent_id', -- '' = the root
  'parent_is', -- `given`, or `head`: a guess at the session's head
  'user_id', 'user_body', 'user_json', -- of the user message, or '' thrice; the JSON is for its event
  'assistant_id', 'assistant_body', 'assistant_json',
  'created_event', 'max_queued', 'log_entries', 'log_ms',
  'continues', -- SHA-1 of the body that the assistant message has; '' = it is new
  'max_messages', 'max_bytes', -- of a session; 0 = any number
  'next_round', -- as it is stored, of the answer that is just that; or ''
  'kept', -- what a door keeps of what it was asked, or ''
  'queue_revision', 'queue', 'queue_shown', -- of what was first in the queue: as it was, and without that; or '' thrice
}, {
  'fields', -- names and values
  'more_keys', -- idempotency keys that stand for the same response
  'before', -- messages that come before the user message: id, parent, body, JSON of each; their parent is `parent_id`
})
local m, msg, log, r, e, i, q, runs, tree, ids, share = unpack(KEYS)
local rid = args.response_id
local uid, locked, active, epoch, head, title, newest, message_count, bytes = unpack(redis.call('HMGET', m, 'uid',
  'locked', 'active_response_id', 'epoch', 'head', 'title', 'offset', 'message_count', 'bytes'))
if not uid or uid ~= args.uid then return {'not_found'} end
local title_empty = title == '' and 1 or 0
local hidden, place = redis.call('HGET', m, 'hidden') or '', redis.call('HGET', m, 'place') or ''

local early = false
local known = redis.call('GET', i)
if known == 'cancelled' then
  early = true
elseif known and not (args.queue_revision ~= '' and known == 'queued ' .. args.body_hash) then
  local known_rid, hash = string.match(known, '^(%S+) (%S*)$')
  if hash ~= args.body_hash then return {'key_reused', known_rid} end
  local word = known_rid == rid and 'ok' or 'replayed' -- our own id: the first reply was lost
  local run = string.sub(r, 1, -string.len(rid) - 1) .. known_rid
  local fence, cancel, lease_until = unpack(redis.call('HMGET', run, 'fence', 'cancel', 'lease_until'))
  local wait = 0
  for place, waiting in ipairs(redis.call('LRANGE', q, 0, -1)) do
    if waiting == known_rid then wait = place end
  end
  return {word, known_rid, tonumber(fence or 0), wait, tonumber(newest), epoch, now_ms(), tonumber(cancel or 0),
    title_empty, tonumber(lease_until or 0), hidden, place}
end

if locked ~= '' then return {'locked', locked} end
local given = args.parent_is == 'given'
if given and args.parent_id ~= '' and redis.call('HEXISTS', msg, args.parent_id) == 0 then
  return {'parent_not_found'}
end
local num_new = (args.user_id ~= '' and 1 or 0) + (args.continues == '' and 1 or 0) + #args.before / 4
local num_bytes = (bytes or 0) + size_of(args.user_body) + size_of(args.kept)
for i = 1, #args.before, 4 do num_bytes = num_bytes + size_of(args.before[i + 2]) end
local is_promised = args.next_round ~= '' -- to its user: there are few of them after a question
if not is_promised and args.max_messages ~= '0' and message_count + num_new > tonumber(args.max_messages) then
  return {'quota', 'messages'}
end
if not is_promised and args.max_bytes ~= '0' and num_bytes > tonumber(args.max_bytes) then
  return {'quota', 'bytes'}
end
if args.queue_revision ~= '' and args.queue_revision ~= (redis.call('HGET', m, 'queue_revision') or '0') then
  return {'queue_changed'}
end
if args.next_round ~= '' and args.next_round ~= redis.call('HGET', m, 'next_round') then
  return {'queue_changed'}
end
local busy = active ~= ''
if busy then
  if args.on_busy ~= 'queue' then return {'busy', active} end
  if redis.call('LLEN', q) >= tonumber(args.max_queued) then return {'queue_full', active} end
end
if args.continues ~= '' and redis.sha1hex(redis.call('HGET', msg, args.assistant_id) or '') ~= args.continues then
  return {'changed'}
end
if not given and head ~= args.parent_id then return {'moved', head} end

local now = now_ms()
local lease_until = now + args.lease_ms
local wait = busy and redis.call('RPUSH', q, rid) or 0
local parent = args.user_id == '' and args.parent_id or args.user_id -- of the assistant message
redis.call('HSET', r, 'uid', uid, 'status', 'queued', 'fence', 1, 'owner', args.owner, 'sequence_number', 1,
  'lease_until', lease_until, 'cancel', 0, 'message_id', args.assistant_id, 'parent_id', parent, 'created_at', now,
  'num_tokens', 0, unpack(args.fields))
if early then
  redis.call('HSET', r, 'cancel', 1, 'cancel_by', 'user', 'cancel_reason', 'client_cancelled', 'cancel_at', now)
end

local offset = 0
local lines = {}
local function put(id, its_parent, body, json)
  local kind = 'message.updated'
  if put_message(m, msg, id, body) then
    kind = 'message.created'
    message_count = message_count + 1
    redis.call('RPUSH', tree, id .. ' ' .. its_parent)
  end
  local event = '{"type":"' .. kind .. '","message":' .. json .. '}'
  offset = log_event(m, log, event, args.log_entries, args.log_ms)
  table.insert(lines, event)
end
if args.queue_revision ~= '' then
  redis.call('HSET', m, 'queue', args.queue, 'queue_shown', args.queue_shown)
  if args.queue == '[]' then redis.call('HSET', m, 'queue_paused', '') end
  local event = new_queue_event(m)
  offset = log_event(m, log, event, args.log_entries, args.log_ms)
  table.insert(lines, event)
end
local above = args.parent_id
for i = 1, #args.before, 4 do
  local id, body, json = args.before[i], args.before[i + 2], args.before[i + 3]
  put(id, args.before[i + 1], body, json)
  above = id
end
if args.user_id ~= '' then put(args.user_id, above, args.user_body, args.user_json) end
put(args.assistant_id, parent, args.assistant_body, args.assistant_json)
redis.call('HSET', m, 'active_response_id', busy and active or rid, 'message_count', message_count,
  'head', args.assistant_id, 'updated_at', now)
if args.kept ~= '' then put_message(m, msg, rid, args.kept) end
redis.call('HDEL', m, 'next_round') -- a question that is faster has the outputs in its prompt
redis.call('ZADD', runs, '+inf', rid)
hold({m, msg, q, runs, tree, ids, share})
redis.call('XADD', e, '1-0', 'd', args.created_event)
redis.call('SET', i, rid .. ' ' .. args.body_hash, 'PX', args.idempotency_ms)
for _, key in ipairs(args.more_keys) do
  local hash = string.match(redis.call('GET', key) or '', ' (%S+)$')
  redis.call('SET', key, rid .. ' ' .. (hash or args.body_hash), 'PX', args.idempotency_ms)
end
publish_session(epoch, offset, table.concat(lines, '\n'))
publish_response(rid, 1, 1, 1, args.created_event)
return {'ok', rid, 1, wait, offset, epoch, now, early and 1 or 0, title_empty, lease_until, hidden, place}
