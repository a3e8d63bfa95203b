-- Enters a session into the index of its user's group, unless the group has as many as it may.
-- KEYS g:{gid}:s g:{gid}:p
-- ok, also where the group is gone | full
read_args({
  'session_id', 'updated_at',
  'max_sessions', -- 0 = any number
})
if redis.call('EXISTS', KEYS[2]) == 0 then return {'ok'} end
if not redis.call('ZSCORE', KEYS[1], args.session_id) and args.max_sessions ~= '0'
  and redis.call('ZCARD', KEYS[1]) >= tonumber(args.max_sessions) then return {'full'} end
redis.call('ZADD', KEYS[1], args.updated_at, args.session_id)
return {'ok'}
