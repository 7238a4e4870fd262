-- Deletes expired sessions and returns their number. ARGV: prefix, now, limit.
local ids = redis.call('ZRANGEBYSCORE', ARGV[1] .. ':x', '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, id in ipairs(ids) do
    forget(ARGV[1], id)
end
return #ids
