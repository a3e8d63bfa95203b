-- Changes fields of a user that exists; one that was deleted is not re-created.
-- KEYS u:{uid}:p
-- ok | not_found
read_args({}, {
  'fields', -- names and values
})
if redis.call('EXISTS', KEYS[1]) == 0 then return {'not_found'} end
if #args.fields > 0 then redis.call('HSET', KEYS[1], unpack(args.fields)) end
return {'ok'}
