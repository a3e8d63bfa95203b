-- Adds messages after the head, all of them or none; each is the parent of the next, and the last is the head then.
-- KEYS m log msg tree ids runs q share
-- ok now hidden | not_found | locked reason | busy rid | moved | quota messages/bytes
read_args({
  'channel', 'uid', 'call_id',
  'head', -- that they were made for, or ''
  'max_messages', 'max_bytes', -- of a session; 0 = any number
  'log_entries', 'log_ms', 'idle_ms',
}, {
  'messages', -- id, parent, body and the JSON for its event, of each
})
local m, log, msg, tree, ids, runs, q, share = unpack(KEYS)
local uid, locked, active, epoch, head, message_count, bytes, calls, hidden = unpack(redis.call('HMGET', m, 'uid',
  'locked', 'active_response_id', 'epoch', 'head', 'message_count', 'bytes', 'calls', 'hidden'))
if not uid or uid ~= args.uid then return {'not_found'} end
if is_among(calls, args.call_id) then return {'ok', now_ms(), hidden or ''} end -- added before, the reply was lost
if locked ~= '' then return {'locked', locked} end
if active ~= '' then return {'busy', active} end
if head ~= args.head then return {'moved'} end
local num_bytes = tonumber(bytes or 0)
for i = 3, #args.messages, 4 do num_bytes = num_bytes + size_of(args.messages[i]) end
if args.max_messages ~= '0' and message_count + #args.messages / 4 > tonumber(args.max_messages) then
  return {'quota', 'messages'}
end
if args.max_bytes ~= '0' and num_bytes > tonumber(args.max_bytes) then return {'quota', 'bytes'} end

local now = now_ms()
redis.call('HSET', m, 'updated_at', now, 'calls', with_call(calls, args.call_id))
redis.call('HDEL', m, 'next_round')
local offset, lines = 0, {}
for i = 1, #args.messages, 4 do
  local id, parent, body, json = unpack(args.messages, i, i + 3)
  put_message(m, msg, id, body)
  redis.call('RPUSH', tree, id .. ' ' .. parent)
  local event = '{"type":"message.created","message":' .. json .. '}'
  offset = log_event(m, log, event, args.log_entries, args.log_ms)
  table.insert(lines, event)
  head = id
end
redis.call('HSET', m, 'head', head, 'message_count', message_count + #args.messages / 4)
let_go(args.idle_ms, {m, msg, tree, ids, runs, q, share})
publish_session(epoch, offset, table.concat(lines, '\n'))
return {'ok', now, hidden or ''}
