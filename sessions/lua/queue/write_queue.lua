-- Replaces the queue of a session if it is still the one that the caller has read, logs and publishes `queue.updated`.
-- KEYS m log, and what a key stands for: of an input that is added or removed
-- ok offset active | changed queue | known value | locked reason | not_found
read_args({
  'channel', 'uid', 'call_id',
  'revision', -- that was read; or '' = nobody has read it, and nothing waits there
  'queue', 'shown', -- the items, and as events have them
  'paused', -- 1, or ''
  'adds', -- 1: the key must be unknown; or ''
  'key_value', 'idempotency_ms', 'log_entries', 'log_ms',
}, {
  'queue_fields', -- of the reply `changed`
})
local m, log, i = unpack(KEYS)
local uid, locked, epoch, revision, calls, active, offset = unpack(redis.call('HMGET', m, 'uid', 'locked', 'epoch',
  'queue_revision', 'calls', 'active_response_id', 'offset'))
if not uid or uid ~= args.uid then return {'not_found'} end
if is_among(calls, args.call_id) then return {'ok', tonumber(offset), active} end -- the reply was lost
if args.adds ~= '' then
  local known = redis.call('GET', i)
  if known then return {'known', known} end
  if locked ~= '' then return {'locked', locked} end
end
local is_as_read = (revision or '0') == args.revision
if args.revision == '' then
  local items, paused = unpack(redis.call('HMGET', m, 'queue', 'queue_paused'))
  is_as_read = (not items or items == '[]') and paused ~= '1'
end
if not is_as_read then return {'changed', redis.call('HMGET', m, unpack(args.queue_fields))} end
redis.call('HSET', m, 'queue', args.queue, 'queue_shown', args.shown, 'queue_paused', args.paused, 'calls',
  with_call(calls, args.call_id))
if i then redis.call('SET', i, args.key_value, 'PX', args.idempotency_ms) end
local event = new_queue_event(m)
offset = log_event(m, log, event, args.log_entries, args.log_ms)
publish_session(epoch, offset, event)
return {'ok', offset, active}
