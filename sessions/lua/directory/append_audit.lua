-- Adds an entry to the audit log, once.
-- KEYS adm:audit
-- ok
read_args({'call_id', 'max_entries'}, {
  'fields', -- names and values
})
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 64)) do
  if entry[2][2] == args.call_id then return {'ok'} end -- stored before, the reply was lost
end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', args.max_entries, '*', 'call', args.call_id, unpack(args.fields))
return {'ok'}
