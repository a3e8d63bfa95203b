-- Locks or unlocks a session, or evicts its viewers.
-- KEYS m log
-- ok uid | not_found
read_args({
  'channel', 'call_id',
  'lock', -- + and the reason that later answers are refused with, - to unlock, or ''
  'event', -- or ''
  'log_entries', 'log_ms',
})
local m, log = unpack(KEYS)
local uid, epoch, calls = unpack(redis.call('HMGET', m, 'uid', 'epoch', 'calls'))
if not uid then return {'not_found'} end
if is_among(calls, args.call_id) then return {'ok', uid} end -- applied before, the reply was lost
redis.call('HSET', m, 'calls', with_call(calls, args.call_id))
if args.lock ~= '' then
  redis.call('HSET', m, 'locked', string.sub(args.lock, 2))
  redis.call('HINCRBY', m, 'revision', 1)
end
if args.event ~= '' then
  publish_session(epoch, log_event(m, log, args.event, args.log_entries, args.log_ms), args.event)
end
return {'ok', uid}
