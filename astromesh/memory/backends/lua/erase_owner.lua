-- Deletes sessions of a principal and returns their number. ARGV: prefix, tenant, owner, limit.
local prefix, tenant, owner, most = unpack(ARGV)
local index = prefix .. ':o:' .. tenant .. US .. owner
local members = redis.call('ZRANGE', index, 0, most - 1)
for _, member in ipairs(members) do
    forget(prefix, tenant .. US .. member)
    redis.call('ZREM', index, member)
end
return #members
