-- Changes fields of a session, logs and publishes `session.updated`.
-- KEYS m log msg tree ids runs q share
-- ok | conflict revision | not_found | message_not_found
read_args({
  'channel',
  'uid', -- '' = no check
  'if_revision', -- or ''
  'call_id',
  'event', -- a JSON object without the revision
  'head', -- or ''
  'log_entries', 'log_ms', 'idle_ms',
}, {
  'fields', -- names and values
})
local m, log, msg, tree, ids, runs, q, share = unpack(KEYS)
local uid, epoch, revision, calls, active = unpack(redis.call('HMGET', m, 'uid', 'epoch', 'revision', 'calls',
  'active_response_id'))
if not uid or (args.uid ~= '' and uid ~= args.uid) then return {'not_found'} end
if is_among(calls, args.call_id) then return {'ok'} end -- applied before, the reply was lost
if args.if_revision ~= '' and revision ~= args.if_revision then return {'conflict', tonumber(revision)} end
if args.head ~= '' and redis.call('HEXISTS', msg, args.head) == 0 then return {'message_not_found'} end
redis.call('HSET', m, 'updated_at', now_ms(), 'calls', with_call(calls, args.call_id), unpack(args.fields))
revision = redis.call('HINCRBY', m, 'revision', 1)
local event = string.sub(args.event, 1, -2) .. ',"revision":' .. revision .. '}'
local offset = log_event(m, log, event, args.log_entries, args.log_ms)
redis.call('HSET', m, 'revision_offset', offset)
if active == '' then let_go(args.idle_ms, {m, msg, tree, ids, runs, q, share}) end
publish_session(epoch, offset, event)
return {'ok'}
