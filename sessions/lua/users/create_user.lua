-- Makes a user once: the id is derived from an idempotency key, so a repeat meets its own user.
-- KEYS u:{uid}:p i
-- ok | replayed digest (of the token before this one) | reused | not_found (removed since)
read_args({
  'call_id',
  'content', -- a digest of what was asked for
  'digest', -- of the token that the asker is given
  'life_ms',
}, {
  'fields', -- names and values
})
local p, i = unpack(KEYS)
local call_id, content, digest, before = unpack(redis.call('HMGET', i, 'call', 'content', 'digest', 'before'))
local is_there = redis.call('EXISTS', p) == 1
if not content then
  if is_there then return {'reused'} end -- its key has been forgotten
  redis.call('HSET', i, 'call', args.call_id, 'content', args.content, 'digest', args.digest, 'before', '')
  redis.call('PEXPIRE', i, args.life_ms)
  redis.call('HSET', p, unpack(args.fields))
  return {'ok'}
end
if content ~= args.content then return {'reused'} end
if not is_there then return {'not_found'} end
if call_id ~= args.call_id then -- else the reply was lost
  redis.call('HSET', i, 'call', args.call_id, 'digest', args.digest, 'before', digest)
  before = digest
end
if before == '' then return {'ok'} end
return {'replayed', before}
