-- Drops entries of an index, but for those that were written again meanwhile.
-- KEYS index
-- ok
read_args({}, {
  'entries', -- members and scores
})
for i = 1, #args.entries, 2 do
  local member, expected = args.entries[i], args.entries[i + 1]
  local score = redis.call('ZSCORE', KEYS[1], member)
  if score and tonumber(score) == tonumber(expected) then redis.call('ZREM', KEYS[1], member) end
end
return {'ok'}
