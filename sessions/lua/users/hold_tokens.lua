-- Holds tokens of a group's day for one answer, as many as it wants or as are left. What is held counts as used until
-- `settle_tokens` says what was. A repeat finds what is held, and adds what it wants more.
-- KEYS g:{gid}:q g:{gid}:p
-- ok held used held_by_others | full used held_by_others | gone
read_args({
  'response_id',
  'day', -- which it counts in, if nothing is held for it yet
  'wanted', 'least',
  'limit', -- 0 = any number
})
if redis.call('EXISTS', KEYS[2]) == 0 then return {'gone'} end -- some workers hear of it later
local field = 'r:' .. args.response_id
local day, own, since = string.match(redis.call('HGET', KEYS[1], field) or '', '^(%d+) (%d+) (%d+)$')
day, own, since = day or args.day, tonumber(own or 0), since or string.format('%.0f', now_ms())
local used, held = unpack(redis.call('HMGET', KEYS[1], 't:' .. day, 'h:' .. day))
used, held = tonumber(used or 0), tonumber(held or 0) - own
local wanted = math.max(own, tonumber(args.wanted))
if args.limit ~= '0' then
  local rest = tonumber(args.limit) - used - held
  if own == 0 and rest < tonumber(args.least) then return {'full', used, held} end
  wanted = math.max(own, math.min(wanted, rest))
  if wanted < tonumber(args.least) then return {'full', used, held} end
end
redis.call('HINCRBY', KEYS[1], 'h:' .. day, wanted - own)
redis.call('HSET', KEYS[1], field, day .. ' ' .. string.format('%.0f', wanted) .. ' ' .. since)
return {'ok', wanted, used, held}
