-- Writes a message anew, which stays where it is, and drops what was kept of its old text.
-- KEYS m log msg ids, and of the run that has written it, if any did: r e tok
-- ok | not_found | message_not_found | changed | busy
read_args({
  'channel', 'uid', 'call_id', 'message_id',
  'version', -- SHA-1 of the body that it has
  'body', 'event', 'log_entries', 'log_ms',
})
local m, log, msg, ids, r = unpack(KEYS)
local uid, epoch, calls = unpack(redis.call('HMGET', m, 'uid', 'epoch', 'calls'))
if not uid or uid ~= args.uid then return {'not_found'} end
if is_among(calls, args.call_id) then return {'ok'} end -- written before, the reply was lost
local body = redis.call('HGET', msg, args.message_id)
if not body then return {'message_not_found'} end
if redis.sha1hex(body) ~= args.version then return {'changed'} end
if r and is_live(redis.call('HGET', r, 'status')) then return {'busy'} end
redis.call('HSET', m, 'updated_at', now_ms(), 'calls', with_call(calls, args.call_id))
put_message(m, msg, args.message_id, args.body)
redis.call('HDEL', ids, args.message_id)
if r then redis.call('UNLINK', unpack(KEYS, 5)) end
local offset = log_event(m, log, args.event, args.log_entries, args.log_ms)
publish_session(epoch, offset, args.event)
return {'ok'}
