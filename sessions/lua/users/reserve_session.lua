-- Enters a session into its user's index, unless the user has as many as they may.
-- Those that its lists hide count, too.
-- KEYS u:{uid}:s u:{uid}:h
-- ok | full
read_args({
  'session_id', 'updated_at',
  'max_sessions', -- 0 = any number
  'hidden', -- 1: it is one of those; or ''
})
local shown, hidden = unpack(KEYS)
local index = args.hidden == '1' and hidden or shown
if not redis.call('ZSCORE', index, args.session_id) and args.max_sessions ~= '0'
  and redis.call('ZCARD', shown) + redis.call('ZCARD', hidden) >= tonumber(args.max_sessions) then return {'full'} end
redis.call('ZADD', index, args.updated_at, args.session_id)
return {'ok'}
