-- Counts what an answer has used in the day of its group that it was held for, once, and gives the rest back.
-- KEYS g:{gid}:q
-- ok used | unknown
read_args({
  'response_id', 'num_tokens',
  'oldest', -- days before that one are forgotten
})
local field = 'r:' .. args.response_id
local day, own = string.match(redis.call('HGET', KEYS[1], field) or '', '^(%d+) (%d+) %d+$')
if not day then return {'unknown'} end
redis.call('HDEL', KEYS[1], field)
redis.call('HINCRBY', KEYS[1], 'h:' .. day, -own)
local used = redis.call('HINCRBY', KEYS[1], 't:' .. day, args.num_tokens)
if used == tonumber(args.num_tokens) then -- the day's first
  local fields = redis.call('HGETALL', KEYS[1])
  for place = 1, #fields, 2 do
    local its_day = string.match(fields[place], '^[th]:(%d+)$')
    if its_day and its_day < args.oldest then redis.call('HDEL', KEYS[1], fields[place]) end
  end
end
return {'ok', used}
