-- Reads a session for its owner. Of another's no further field is read: the time would reveal that it exists.
-- KEYS m
-- ok values | not_found
read_args({
  'uid', -- '' = anybody's
}, {
  'fields',
})
local uid = redis.call('HGET', KEYS[1], 'uid')
if not uid or args.uid ~= '' and args.uid ~= uid then return {'not_found'} end
return {'ok', redis.call('HMGET', KEYS[1], unpack(args.fields))}
